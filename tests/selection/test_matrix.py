"""What holds for every registered selector, under several configurations each, by random search."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_cases import CONFIGURATIONS, DOCUMENTED, MATRIX, REQUESTS, WITH_CONSTRAINTS, make_request
from selection_reference import slow_select
from structured_reference import STRUCTURED, slow_structured

from sp.errors import ConfigError
from sp.selection import SELECTORS, Constrained, Selection, SelectionRequest

every = pytest.mark.parametrize(("name", "options"), MATRIX, ids=str)


def check(selection: Selection, request: SelectionRequest) -> None:
    n = len(request.scores)
    assert selection.selected.shape == selection.forced.shape == (n,)
    assert (np.diff(selection.indices) > 0).all()
    protected = int(request.protected.sum())
    assert selection.selected.sum() <= protected + np.ceil(round(request.keep_ratio * (n - protected), 6))
    assert selection.selected[request.protected].all()
    assert selection.selected[selection.forced].all()
    assert selection.keep_ratio == pytest.approx(len(selection.indices) / n)
    assert selection.bounds[0] == 0
    assert selection.bounds[-1] == n
    assert (np.diff(selection.bounds) > 0).all()
    assert len(selection.chunk_scores) == len(selection.bounds) - 1


def test_every_configuration_is_of_a_registered_selector() -> None:
    assert set(CONFIGURATIONS) <= set(SELECTORS)


def test_the_page_names_every_documented_selector_with_its_fields() -> None:
    page = (Path(__file__).parents[2] / "docs" / "selectors.md").read_text()
    table = page[page.index("| selector |") : page.index("sp run --keep-ratio 0.2 --selector alpha")]
    shared = {field.name for field in fields(Constrained)}
    for name in DOCUMENTED:
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}` |"))
        plain = name in ("token_budget", "alpha", "top_p", "zscore", "adaptive")
        for field in fields(type(SELECTORS.build(name))):
            if not (plain and field.name == "chunk_size"):
                where = table if field.name in shared else row
                assert f"`{field.name}={field.default}`" in where, f"{name}: {field.name}"


@every
@settings(max_examples=12, deadline=None)
@given(request=REQUESTS, more=st.floats(1.0, 4.0))
def test_every_request(name: str, options: dict[str, Any], request: SelectionRequest, more: float) -> None:
    """The selection is sorted, within the budget, the same again, and part of what a larger ratio selects.

    Where the rule is written the slow way as well, that selects the same.
    """
    before = request.scores.copy(), request.protected.copy()
    selector = SELECTORS.build(name, options)
    selection = selector.select(request)
    check(selection, request)
    if request.keep_ratio == 1:
        assert selection.selected.all()
    np.testing.assert_array_equal(request.scores, before[0])
    np.testing.assert_array_equal(request.protected, before[1])
    if name in DOCUMENTED:
        slow = slow_structured if name in STRUCTURED else slow_select
        assert set(selection.indices.tolist()) == slow(name, request, options)
    again = SELECTORS.build(name, options).select(request)
    np.testing.assert_array_equal(selection.selected, again.selected)
    large = selector.select(replace(request, keep_ratio=min(1.0, request.keep_ratio * more)))
    assert large.selected[selection.selected].all()
    assert large.forced[selection.forced].all()


@pytest.fixture(scope="module")
def long_request() -> SelectionRequest:
    return make_request(7, 131072, 0.1, 0.001, "peaks")


@pytest.mark.parametrize("name", list(CONFIGURATIONS))
def test_a_prompt_of_128k_tokens(name: str, long_request: SelectionRequest) -> None:
    constraints = [{"neighbours": "by_length", "backbone": 0.1, "min_run": 16}] if name in WITH_CONSTRAINTS else []
    for options in ({}, *constraints):
        check(SELECTORS.build(name, options).select(long_request), long_request)


@pytest.mark.parametrize("name", WITH_CONSTRAINTS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sink": -1}, "sink must be at least 0"),
        ({"tail": -1}, "tail must be at least 0"),
        ({"neighbours": -1}, "neighbours must be at least 0"),
        ({"neighbours": "by_lenght"}, "neighbours must be"),
        ({"neighbours": 1.5}, "neighbours must be"),
        ({"min_run": 0}, "min_run must be at least 1"),
        ({"backbone": 1.0}, "backbone must be at least 0 and below 1"),
        ({"backbone": -0.1}, "backbone must be"),
        ({"backbone": float("nan")}, "backbone must be"),
        ({"sinks": 3}, "did you mean 'sink'"),
    ],
)
def test_shared_options_are_checked(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        SELECTORS.build(name, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("top_chunks", {"chunk_size": 0}, "chunk_size must be at least 1"),
        ("token_budget", {"tokens": 0}, "tokens must be at least 1"),
        ("alpha", {"alpha": 0.0}, "above 0 and below 1 with of=max"),
        ("alpha", {"alpha": 1.0}, "below 1 with of=max"),
        ("alpha", {"alpha": -1.0, "of": "mean"}, "positive number"),
        ("alpha", {"alpha": float("inf"), "of": "mean"}, "positive number"),
        ("alpha", {"of": "men"}, "did you mean 'mean'"),
        ("top_p", {"p": 0.0}, "p must be above 0 and at most 1"),
        ("top_p", {"p": float("nan")}, "p must be"),
        ("zscore", {"z": float("nan")}, "z must be a finite number"),
        ("zscore", {"spread": "sd"}, "Known: mad, std"),
        ("adaptive", {"least": 0.0}, "least must be"),
        ("adaptive", {"rule": "knee"}, "Known: elbow, entropy"),
        ("sentence", {"longest": 0}, "longest must be at least 1"),
        ("lines", {"longest": 0}, "longest must be at least 1"),
    ],
)
def test_own_options_are_checked(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SELECTORS.build(name, options)
