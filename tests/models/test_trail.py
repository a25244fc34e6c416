"""A trail that goes back and reads on, grows, forks and is parked gives the logits of one reading."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from retriever_files import ARCHS

from sp.models import Hooks, Model, SessionCache, prefill

IDS = np.random.default_rng(8).integers(0, 256, 700)


def read(trail: SessionCache, model: Model, stop: int, ids: np.ndarray = IDS) -> np.ndarray:
    """From where the trail stands up to `stop`."""
    start = trail.tokens
    with trail.reading(stop - start) as cache:
        return prefill(model, ids[start:stop], np.arange(start, stop), cache)


def whole(model: Model, ids: np.ndarray, kv: str = "f16") -> np.ndarray:
    return prefill(model, ids, np.arange(len(ids)), model.new_cache(len(ids), kv))


def close(got: np.ndarray, want: np.ndarray, kv: str = "f16") -> None:
    """Keys and values are rounded to 11 bits; one of four bits may round the other way where products of other sizes
    differ in their last bit, as they do on some processors, and is off by a step."""
    assert ((got - want) ** 2).sum() < (1e-6 if kv == "f16" else 1e-2) * (want**2).sum()


@pytest.fixture(params=ARCHS)
def model(request: pytest.FixtureRequest, retrievers: dict[str, Model]) -> Model:
    return retrievers[request.param]


@pytest.mark.parametrize("kv", ["f16", "q4_0"])
def test_it_reads_on_from_wherever_it_goes_back_to(model: Model, kv: str) -> None:
    trail, other = SessionCache(model.config, kv), IDS.copy()
    other[300:] = (other[300:] + 1) % 256
    for stop in (90, 200, 260):
        read(trail, model, stop)
        trail.mark()
    read(trail, model, 400)
    assert trail.reachable(300) == (260 if trail.recurrent else 300)
    left = trail.rewind_to(300)
    assert left == trail.tokens == (260 if trail.recurrent else 300)
    close(read(trail, model, 600, other), whole(model, other[:600], kv), kv)
    assert trail.rewind_to(89) == (0 if trail.recurrent else 89)
    close(read(trail, model, 120), whole(model, IDS[:120], kv), kv)


@pytest.mark.parametrize("last", [0, 1])
def test_what_fails_half_way_is_forgotten(model: Model, last: int) -> None:
    trail = SessionCache(model.config)
    for stop in (50, 130):
        read(trail, model, stop)
        trail.mark()
    read(trail, model, 135)

    def stop_after(layer: int, x: np.ndarray) -> None:
        if layer == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), trail.reading(60) as cache:
        prefill(model, IDS[135:195], np.arange(135, 195), cache, hooks=Hooks(after_layer=stop_after))
    assert trail.tokens == 135
    fork = trail.fork(130)
    assert fork.tokens == 130
    close(read(fork, model, 131), whole(model, IDS[:131]))
    assert trail.rewind_to(135) == (130 if trail.recurrent else 135)
    close(read(trail, model, 300), whole(model, IDS[:300]))


def test_a_fork_of_what_failed_has_states_of_before(model: Model) -> None:
    trail = SessionCache(model.config)
    read(trail, model, 130)
    trail.mark()

    def leave(layer: int, x: np.ndarray) -> None:
        if layer == model.config.layers - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), trail.reading(60) as cache:
        prefill(model, IDS[130:190], np.arange(130, 190), cache, hooks=Hooks(after_layer=leave))
    fork = trail.fork(130)
    assert fork.tokens == 130
    close(read(fork, model, 131), whole(model, IDS[:131]))


def test_a_fork_shares_nothing(model: Model) -> None:
    trail, other = SessionCache(model.config), (IDS + 1) % 256
    other[:200] = IDS[:200]
    read(trail, model, 180)
    trail.mark()
    read(trail, model, 330)
    fork = trail.fork(200)
    assert fork.tokens == (180 if fork.recurrent else 200)
    close(read(fork, model, 400, other), whole(model, other[:400]))
    close(read(trail, model, 401), whole(model, IDS[:401]))
    fork.rewind_to(180)
    close(read(fork, model, 260), whole(model, IDS[:260]))
    assert trail.fork(trail.tokens).tokens == 401


def test_parked_it_holds_host_memory_alone_and_comes_back(model: Model) -> None:
    trail = SessionCache(model.config)
    assert not trail.park()
    read(trail, model, 150)
    trail.mark()
    read(trail, model, 290)
    before = trail.host_nbytes
    assert trail.park()
    assert not trail.park()
    assert trail.nbytes == 0 < before + trail.host_nbytes
    assert trail.cache is None
    close(read(trail, model, 500), whole(model, IDS[:500]))
    assert trail.host_nbytes == before
    trail.park()
    assert trail.rewind_to(200) == (150 if trail.recurrent else 200)
    assert trail.cache is None, "going back takes no memory of the device"
    close(read(trail, model, 301), whole(model, IDS[:301]))
    trail.clear()
    assert trail.nbytes == trail.host_nbytes == trail.tokens == 0


def test_what_is_parked_is_a_place_to_go_back_to_once_it_is_marked(model: Model) -> None:
    """The memory that it waits in is used again."""
    trail = SessionCache(model.config)
    read(trail, model, 150)
    trail.park()
    trail.mark()
    read(trail, model, 290)
    trail.park()
    assert trail.rewind_to(200) == (150 if trail.recurrent else 200)
    close(read(trail, model, 301), whole(model, IDS[:301]))


def test_nothing_may_be_parked_too(model: Model) -> None:
    trail = SessionCache(model.config)
    read(trail, model, 40)
    trail.rewind_to(0)
    assert trail.park()
    close(read(trail, model, 90), whole(model, IDS[:90]))


def test_snapshots_are_dense_where_a_chat_goes_on(retrievers: dict[str, Model]) -> None:
    trail = SessionCache(retrievers["qwen35"].config, snapshots=4)
    for stop in (*range(60, 600, 60), 610, 620):
        read(trail, retrievers["qwen35"], stop)
        trail.mark()
    *old, before, last = trail.places
    assert (before, last) == (610, 620), "a turn goes back to the end of what the last one began with"
    assert old[0] <= 480


def test_few_snapshots_lie_far_from_each_other(retrievers: dict[str, Model]) -> None:
    model = retrievers["qwen35"]
    trail = SessionCache(model.config, snapshots=3)
    for stop in (10, 20, 30, 40, 200, 210):
        read(trail, model, stop)
        trail.mark()
        trail.mark()
    assert trail.places == (40, 200, 210)
    per = trail.host_nbytes / 3
    assert per == sum(model.new_cache(1).state(i).nbytes for i in model.config.delta_layers)


@pytest.mark.parametrize("parked", [False, True])
def test_what_is_taken_piece_by_piece_makes_the_same_trail_elsewhere(model: Model, parked: bool) -> None:
    """Pages of later pieces stand in for those of earlier ones from their first block on."""
    trail, made, other = SessionCache(model.config), SessionCache(model.config), (IDS + 1) % 256
    other[:300] = IDS[:300]
    pages: dict[int, list[np.ndarray]] = {}
    snapshots, firsts = {}, []
    for stop, back, ids in ((150, None, IDS), (400, None, IDS), (400, 300, other), (450, None, other)):
        if back is not None:
            trail.rewind_to(back)
        read(trail, model, stop, ids)
        trail.mark()  # at 400 twice, behind other tokens
        if parked:
            trail.park()
        piece = trail.changes()
        firsts.append(piece.first)
        assert set(piece.older) <= set(snapshots)
        snapshots = {at: snapshots[at] for at in piece.older} | dict(piece.fresh)
        for layer, both in piece.contents.pages.items():
            known = pages.get(layer, [each[:0] for each in both])
            pages[layer] = [np.concatenate([old[: piece.first], new]) for old, new in zip(known, both, strict=True)]
    assert firsts == [0, 150 // 128, (150 if trail.recurrent else 300) // 128, 400 // 128]
    both = {layer: (keys, values) for layer, (keys, values) in pages.items()}
    made.put(replace(piece.contents, pages=both), snapshots)
    assert made.places == trail.places
    again = made.changes()
    assert (again.first, len(again.fresh)) == (450 // 128, 0)
    np.testing.assert_array_equal(read(made, model, 500, other), read(trail, model, 500, other))
    for each in (made, trail):
        each.rewind_to(401)
    np.testing.assert_array_equal(read(made, model, 420), read(trail, model, 420))


def test_what_is_half_read_is_not_whole(model: Model) -> None:
    trail = SessionCache(model.config)
    read(trail, model, 60)
    assert trail.whole
    with pytest.raises(KeyboardInterrupt), trail.reading(60):
        raise KeyboardInterrupt
    assert not trail.whole
    trail.rewind_to(60)
    assert trail.whole
