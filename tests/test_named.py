"""Strategies by name: the command line's form, read by one parser, and the same in Python."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sp.commands.common import read_settings
from sp.decode import DECODERS
from sp.decode.dflash import DDTree
from sp.errors import ConfigError
from sp.named import read_strategies, read_strategy
from sp.scoring import SCORERS
from sp.scoring.attention.attention import TailScorer
from sp.selection import SELECTORS
from sp.session import RunOptions


def test_a_name_is_the_strategy_it_names() -> None:
    assert RunOptions(scorer="auto", selector="top_chunks", decode="greedy") == RunOptions()
    named = RunOptions(scorer="tail[queries=24 pool=5]", decode="ddtree[budget=22]")
    assert isinstance(named.scorer, TailScorer)
    assert (named.scorer.queries, named.scorer.pool) == (24, 5)
    assert named.decode == DDTree(budget=22)
    assert replace(named, scorer="lexical").scorer == SCORERS.build("lexical")


@pytest.mark.parametrize("registry", [SCORERS, SELECTORS, DECODERS])
def test_every_registered_name_is_taken(registry: object) -> None:
    field = {id(SCORERS): "scorer", id(SELECTORS): "selector", id(DECODERS): "decode"}[id(registry)]
    for name in registry:  # type: ignore[attr-defined]
        built = getattr(RunOptions(**{field: name}), field)
        assert built == registry.build(name)  # type: ignore[attr-defined]


WRONG = [
    ({"scorer": "tial"}, "unknown scorer 'tial'; did you mean 'tail'"),
    (
        {"selector": "top_chunk"},
        "unknown selector 'top_chunk'; did you mean 'top_chunks'.*Known: adaptive, .*top_",
    ),
    ({"decode": "gredy"}, "unknown decoder 'gredy'; did you mean 'greedy'"),
    ({"scorer": "tail[querys=24]"}, "unknown option of scorer tail 'querys'; did you mean 'queries'.*Known: "),
    ({"scorer": "tail[queries=many]"}, "scorer tail: queries must be"),
    ({"scorer": "tail[queries=1,pool=2]"}, "NAME=VALUE, separated by spaces"),
    ({"scorer": "tail,lexical"}, "scorer takes one scorer, not 'tail,lexical'"),
    ({"scorer": ""}, "scorer is empty; known: anchored, .*in all"),
    ({"scorer": "tail["}, "scorer takes comma-separated names"),
    ({"scorer": "tail[queries=!!int,abc]"}, "!!int,abc is not supported; write text, a number"),
    ({"scorer": "x" * 10_000}, "unknown scorer"),
    ({"scorer": 5}, "options: scorer must be Scorer, not 5"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_names_nothing_is_told_in_a_line(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        RunOptions(**given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_one_strategy_is_the_list_of_one() -> None:
    for text in ("tail", "tail[queries=24]", " lexical "):
        assert [read_strategy(text, SCORERS, "x")] == read_strategies(text, SCORERS, "x")
    assert read_strategy("tail[queries=24 pool=3]", SCORERS, "x", {"queries": 4}) == TailScorer(queries=4, pool=3)


def test_the_command_line_takes_the_same_form() -> None:
    given = read_settings("tail[queries=24]", "top_chunks[sink=3]", "ddtree[budget=5]", ["scorer.pool=3"])
    assert (given["scorer"].queries, given["scorer"].pool, given["scorer"].sparse) == (24, 3, "auto")
    assert (given["selector"].sink, given["decode"].budget) == (3, 5)
    assert read_settings("tail[sparse=off]", "top_chunks", "greedy", [])["scorer"].sparse == "off"
