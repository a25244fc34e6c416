"""The front's page: the last requests, as they came and as they went on."""

from __future__ import annotations

from collections.abc import Sequence

from sp.front.history import Outcome
from sp.page.markup import Html, asset, page, tag

LONGEST = 20_000  # characters of a text that the page shows


def changes_page(upstream: str, outcomes: Sequence[Outcome], show: bool) -> str:
    """The whole page.

    >>> "no request yet" in changes_page("http://127.0.0.1:8080", [], True)
    True
    """
    if not show:
        shown: list[Html] = [tag("p", "Texts are not shown; start with --page to see them.")]
    elif not outcomes:
        shown = [tag("p", "There was no request yet whose texts were shortened.")]
    else:
        shown = [_request(number, outcome) for number, outcome in enumerate(outcomes, 1)]
    head = tag("h1", "sp front ", tag("small", f"before {upstream}"))
    return page("sp front", tag("main", head, *shown), styles=(asset("style.css"),))


def _request(number: int, outcome: Outcome) -> Html:
    told = f"{outcome.tokens:,} tokens came, {outcome.sent:,} went on"
    if outcome.recalled:
        told += f"; {outcome.recalled} passages came back"
    texts = [
        tag("details",
            tag("summary", f"{kind}: {len(before):,} characters, now {len(after):,}"),
            tag("h3", "as it went on"), tag("pre", _cut(after)),
            tag("h3", "as it came"), tag("pre", _cut(before)))
        for kind, before, after in outcome.changes
    ]  # fmt: skip
    return tag(
        "section", tag("h2", "The last request" if number == 1 else f"{number - 1} before it"), tag("p", told), *texts
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n[{len(text) - LONGEST:,} characters more]"
