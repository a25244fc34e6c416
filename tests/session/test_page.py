"""The page on conversations: its example runs, and its options and limits are those of the code."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import get_args

import pytest

from sp.commands.chat import COMMANDS
from sp.decode import DECODERS
from sp.errors import ConfigError
from sp.scoring import SCORERS
from sp.session import RunOptions, load
from sp.session.loaded import embedded
from sp.session.options import Recall, check_run

PAGE = (Path(__file__).parents[2] / "docs" / "conversations.md").read_text()


def test_the_example_of_the_page() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    test = doctest.DocTestParser().get_doctest(code, {}, "docs/conversations.md", "docs/conversations.md", 0)
    told: list[str] = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    assert (failed, tried > 10) == (0, True), "".join(told)


def test_ways_of_recall_and_commands_are_those_there_are() -> None:
    ways = PAGE.partition("| `recall` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \| ", ways, re.M)) == set(get_args(Recall))
    assert set(re.findall(r"`/(\w+)", PAGE)) <= set(COMMANDS)


@pytest.mark.parametrize("name", ["dflash", "ddtree"])
def test_drafts_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="does not support speculative decoding"):
        check_run(RunOptions(decode=DECODERS.build(name)), None)


def test_scorers_are_refused_or_taken_as_the_page_says() -> None:
    drafter = load(embedded("drafter"), device="cpu")
    for name in ("tail", "anchored"):
        assert check_run(RunOptions(scorer=SCORERS.build(name)), drafter) is not None
    with pytest.raises(ConfigError, match="keys of earlier turns"):
        check_run(RunOptions(scorer=SCORERS.build("lookahead")), drafter)
    with pytest.raises(ConfigError, match="use byte_span"):
        check_run(RunOptions(mapping="text_rejoin", positions="contiguous"), drafter)
    with pytest.raises(ConfigError, match="omit mark_omitted"):
        check_run(RunOptions(mark_omitted=True), drafter)
