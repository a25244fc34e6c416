"""docs/many-gpus.md says what shapes and records say."""

from __future__ import annotations

import re

import cost_curves
import many_gpus_page
import pytest
import who_holds_what


@pytest.fixture(scope="module")
def made() -> dict[str, list[str]]:
    return many_gpus_page.tables()


@pytest.mark.parametrize("name", ["held", "moved", "needed", "drafting", "sharing", "first tokens", "curves"])
def test_tables_are_those_of_shapes_and_records(made: dict[str, list[str]], name: str) -> None:
    found = re.search(
        rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", many_gpus_page.PAGE.read_text(), re.DOTALL
    )
    assert found
    assert found.group(1).strip().splitlines() == made[name], "run: PYTHONPATH=tests python tests/many_gpus_page.py"


def test_what_the_peer_was_not_asked_for_is_told() -> None:
    rows = [line.strip("| ").split(" | ") for line in cost_curves.curves()[2:]]
    told = {row[0]: row[-2] for row in rows}
    assert told["128K"] == "67.5"
    assert "interpolated" in told["64K"]
    assert "extrapolated" in told["1024K"]


def test_the_picture_has_all_gpus_and_what_was_measured() -> None:
    left, right = cost_curves.figure().axes
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert sum("predicted" in label for label in labels) == len(cost_curves.GPUS)
    assert sum("measured" in label for label in labels) == len(cost_curves.GPUS)
    assert any("quoted" in text.get_text() for text in right.get_legend().get_texts())


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_of_the_picture_add_up_to_the_table(size: int) -> None:
    parts = who_holds_what.held(size)
    weights = sum(parts[name] for name in ("embedding", "mixers", "feed-forward", "head"))
    assert weights == pytest.approx(many_gpus_page.weights(many_gpus_page.MODELS[0], size) / 1e9, rel=2e-3)  # norms
    assert parts["drafter"] == pytest.approx(1.2, abs=0.1)
    assert set(parts) == set(who_holds_what.PARTS)


def test_all_gpus_of_the_picture_but_the_first_attend_to_as_many_pairs() -> None:
    """The first one, which does more besides, has the fewest."""
    left, _ = who_holds_what.figure().axes
    told = [text.get_text() for text in left.get_legend().get_texts()]
    shares = [float(one.rpartition(" ")[2].rstrip("%")) for one in told]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert shares[0] < min(shares[1:])
    assert len(set(shares[1:])) == 1
