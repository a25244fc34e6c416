"""`top_chunks`: invariants that are its own, and its rules by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.errors import ConfigError
from sp.selection import SELECTORS, Selection, SelectionRequest


def request_for(seed: int, n: int, keep: float, protected_share: float) -> SelectionRequest:
    rng = np.random.default_rng(seed)
    protected = rng.random(n) < protected_share
    return SelectionRequest(rng.random(n).astype(np.float32), protected, keep)


CASES = {
    "seed": st.integers(0, 2**32 - 1),
    "n": st.integers(1, 700),
    "keep": st.floats(0.01, 1.0),
    "share": st.sampled_from([0.0, 0.01, 0.1]),
    "chunk": st.integers(1, 64),
    "neighbours": st.integers(0, 3),
    "ends": st.integers(0, 100),
}


def select(request: SelectionRequest, chunk: int, neighbours: int, ends: int) -> Selection:
    options: dict[str, object] = {"chunk_size": chunk, "neighbours": neighbours, "sink": ends, "tail": ends}
    return SELECTORS.build("top_chunks", options).select(request)


@settings(max_examples=120, deadline=None)
@given(**CASES)
def test_invariants(seed: int, n: int, keep: float, share: float, chunk: int, neighbours: int, ends: int) -> None:
    request = request_for(seed, n, keep, share)
    selection = select(request, chunk, neighbours, ends)
    assert (np.diff(selection.indices) > 0).all()
    assert selection.selected.sum() <= request.budget
    assert selection.selected[request.protected].all()
    assert selection.selected[selection.forced].all()
    if keep == 1:
        assert selection.selected.all()
    # A whole chunk and its neighbours are all that may be left unspent.
    assert request.budget - selection.selected.sum() < chunk
    more = SelectionRequest(request.scores, request.protected, min(1.0, keep * 1.3))
    wider = select(more, chunk, neighbours, ends)
    assert wider.selected[selection.selected].all(), "a larger keep ratio dropped what a smaller one kept"


def test_keep_one_is_the_identity() -> None:
    assert select(request_for(0, 1000, 1.0, 0.0), 32, 1, 32).selected.all()


def test_best_chunks_are_taken_first_with_their_neighbours() -> None:
    scores = np.zeros(320, np.float32)
    scores[5 * 32 : 6 * 32] = 2
    scores[8 * 32 : 9 * 32] = 1
    request = SelectionRequest(scores, np.zeros(320, bool), 0.4)  # four chunks
    assert sorted(set(select(request, 32, 1, 0).indices // 32)) == [4, 5, 6, 8]
    assert sorted(set(select(request, 32, 0, 0).indices // 32)) == [0, 1, 5, 8]


def test_ends_leave_half_of_the_free_budget_to_the_scores() -> None:
    scores = np.zeros(1000, np.float32)
    scores[500:532] = 1
    selection = select(SelectionRequest(scores, np.zeros(1000, bool), 0.08), 32, 0, 512)
    assert selection.forced.sum() == 40
    assert selection.selected[512:532].all()


def test_protected_text_takes_nothing_from_what_others_may_keep() -> None:
    scores = np.zeros(1000, np.float32)
    scores[480:512] = 1
    for fixed in (0, 20, 300, 900):
        protected = np.zeros(1000, bool)
        protected[1000 - fixed : 1000] = True
        protected[480:512] = False
        request = SelectionRequest(scores, protected, 0.7)
        assert request.budget == protected.sum() + np.ceil(0.7 * (~protected).sum())
        selection = select(request, 32, 0, 32)
        assert selection.selected[480:512].all()
        assert selection.selected[protected].all()
    everything = select(SelectionRequest(scores, np.ones(1000, bool), 0.01), 32, 0, 32)
    assert everything.selected.all()


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.5, float("nan")])
def test_keep_ratio_out_of_range_is_refused(keep: float) -> None:
    with pytest.raises(ConfigError, match="keep_ratio"):
        request_for(0, 10, keep, 0)
