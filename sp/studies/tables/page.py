"""Parts of a page that are made from records: what stands between two marks is written, never edited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sp.errors import ConfigError
from sp.studies.tables.age import with_age, with_note
from sp.studies.tables.decode_table import decoding
from sp.studies.tables.first_result import first_result
from sp.studies.tables.headline import headline
from sp.studies.tables.mixture_table import experts, mixture_result, mixtures
from sp.studies.tables.sparse_table import drafters, sparse_layers
from sp.studies.tables.speed_table import kernels, whole_models
from sp.studies.tables.turn_page import turn_rows


class Part(NamedTuple):
    """One part: the marks it stands between, and what makes it from records."""

    begin: str
    end: str
    make: Callable[[Sequence[Any]], str]


def _part(name: str, make: Callable[[Sequence[Any]], str]) -> Part:
    return Part(f"<!-- {name}: made by `sp report`, not by hand -->", f"<!-- end of {name} -->", make)


PARTS = (
    _part("result", first_result),
    _part("mixture result", mixture_result),
    _part("mixtures", mixtures),
    _part("experts", experts),
    _part("speed", whole_models),
    _part("kernels", kernels),
    _part("sparse layers", sparse_layers),
    _part("drafter", drafters),
    _part("headline", headline),
    _part("decoding", decoding),
    _part("turns", turn_rows),
)


def fill(page: str, records: Sequence[Any]) -> str:
    """The page with every part that it has marks for made anew; figures of older kernels are marked and explained.

    Raises
    ------
    ConfigError
        It has marks for none, or see `insert_between`.

    Examples
    --------
    >>> from sp.studies.tables.first_result import NOTHING
    >>> part = PARTS[0]
    >>> NOTHING in fill(f"{part.begin}\\nold\\n{part.end}", [])
    True
    """
    wanted = marked(page)
    if not wanted:
        raise ConfigError(f"the page has no marks of a part made from records, such as {PARTS[0].begin}")
    told = with_age(records)
    for part in wanted:
        page = insert_between(page, part.begin, part.end, with_note(part.make(told)))
    return page


def marked(page: str) -> list[Part]:
    """The parts that a page has a mark of.

    Examples
    --------
    >>> [part.begin for part in marked(f"text {PARTS[-1].begin}")] == [PARTS[-1].begin]
    True
    """
    return [part for part in PARTS if part.begin in page or part.end in page]


def insert_between(text: str, first: str, last: str, table: str) -> str:
    """`text` with `table` between two lines of it.

    Raises
    ------
    ConfigError
        The lines are not there, once each and in order.

    Examples
    --------
    >>> insert_between("a [ old ] z", "[", "]", "new")
    'a [\\nnew\\n] z'
    """
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end or first in rest or last in tail or last in head:
        raise ConfigError(f"the page lacks the two lines {first} and {last}, once each; put them where the table goes")
    return f"{head}{first}\n{table}\n{last}{tail}"
