"""Exact rows of the newest tokens: what a cache of `4bit` gives is what rows kept in a plain list give."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sp.models import Cache, Checkpoint, ModelConfig, SessionCache
from sp.models.cache.kv_type import KVType
from sp.models.cache.transfer import HostBuffer, ParkedCache, copy_cache
from sp.ops.attention.attention import paged_attention
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import value_block
from sp.ops.attention.score_rule import PLAIN, ScoreRule
from sp.ops.attention.tree_attention import seen_words, tree_attention
from sp.ops.hadamard import hadamard
from sp.ops.rope import Rope

HEADS, GROUP, D, NEAR = 2, 2, 64, 64
DENSE = ModelConfig("qwen3", 32, 9, 4096, (8,) * 3, ("attention",) * 3, HEADS * GROUP, HEADS, D, Rope(1e6, D), 1e-6)
CLOSE = 1e-3  # a row may be rounded to 16 bits the other way where products of other sizes differ in their last bit


def a_basis() -> KeyBasis:
    """One whose channels differ in order, offset and scale."""
    rng = np.random.default_rng(9)
    mean, keys, queries = 3 * rng.normal(size=(HEADS, D)), *np.exp(rng.normal(size=(2, HEADS, D)))
    return KeyBasis.measured(mean, keys, queries)


BASES = {0: a_basis(), 1: a_basis()}  # layer 2 has a plain one


def tokens(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    k, v = np.random.default_rng(seed).normal(size=(2, n, HEADS, D)).astype(np.float32)
    return k, v


def queries(n: int, seed: int = 7) -> np.ndarray:
    return 2 * np.random.default_rng(seed).normal(size=(n, HEADS * GROUP, D)).astype(np.float32)


@dataclass
class Rows:
    """All rows of a layer, exact and packed; those that a run reads exactly are chosen when it reads."""

    kv: KVType
    basis: KeyBasis
    exact: list[np.ndarray] = field(default_factory=list)  # (2, kv_heads, d), float16: key and value
    packed: list[np.ndarray] = field(default_factory=list)

    def append(self, k: np.ndarray, v: np.ndarray) -> None:
        sides = self.basis.stored(k), hadamard(v, value_block(D))
        self.exact += list(np.stack(sides, axis=1).astype(np.float16))
        formats = self.kv.k, self.kv.v
        rows = [fmt.decode(fmt.encode(x)).reshape(x.shape) for fmt, x in zip(formats, sides, strict=True)]
        self.packed += list(np.stack(rows, axis=1))

    def drop(self, n: int) -> None:
        """Keep the first n tokens, the newest of which are unpacked: no one has their exact rows any more."""
        self.keep(list(range(n)))
        self.exact[-NEAR:] = [row.astype(np.float16) for row in self.packed[-NEAR:]]

    def keep(self, which: list[int]) -> None:
        self.exact, self.packed = ([rows[i] for i in which] for rows in (self.exact, self.packed))

    def attend(self, q: np.ndarray, mask: np.ndarray, run: int) -> np.ndarray:
        """Attention in float64 of the last tokens, of which the last `run` and those near before are exact."""
        first = max(0, len(self.exact) - run - NEAR)
        rows = np.array(self.packed[:first] + self.exact[first:], np.float64)
        asked = self.basis.queries(q).astype(np.float64)
        out = np.empty(q.shape)
        for head in range(HEADS * GROUP):
            k, v = rows[:, 0, head // GROUP], rows[:, 1, head // GROUP]
            scores = np.where(mask, asked[:, head] @ k.T / D**0.5, -np.inf)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            out[:, head] = weights / weights.sum(1, keepdims=True) @ v
        return out


def causal(n: int, total: int, window: int | None = None) -> np.ndarray:
    """Which of `total` tokens each of the last n sees."""
    back = np.arange(total - n, total)[:, None] - np.arange(total)
    return (back >= 0) & (back < (window or total))


class Pair:
    """A cache, and for each of its layers what it should hold."""

    def __init__(self, kv: str = "4bit", capacity: int = 700, **more) -> None:
        self.cache = Cache(DENSE, capacity, kv, bases=BASES, **more)
        self.rows = {layer: Rows(KVType(kv), self.cache.stored(layer).basis) for layer in range(3)}
        self.seed = 0

    def append(self, layer: int, *sizes: int) -> None:
        for n in sizes:
            self.seed += 1
            k, v = tokens(n, self.seed)
            self.cache.append(layer, k, v)
            self.rows[layer].append(k, v)

    def check(self, layer: int, n: int, window: int | None = None) -> None:
        """That the last n tokens, a run, see what they should."""
        q, total = queries(n), len(self.rows[layer].exact)
        rule = PLAIN if window is None else ScoreRule(window=window)
        got = paged_attention(q, self.cache.stored(layer), rule)
        np.testing.assert_allclose(got, self.rows[layer].attend(q, causal(n, total, window), n), atol=CLOSE)

    def read(self, layer: int, *sizes: int) -> None:
        """Append and check one run after the other."""
        for n in sizes:
            self.append(layer, n)
            if n:
                self.check(layer, n)


@pytest.mark.parametrize("window", [None, 10, 100])
@pytest.mark.parametrize("before", [0, 5, 130, 300])
@pytest.mark.parametrize("n", [1, 7, 64, 65, 200])
def test_a_run_reads_itself_and_what_is_near_exactly(window, before, n) -> None:
    pair = Pair()
    for layer in (0, 2):
        pair.read(layer, before)
        pair.append(layer, n)
        pair.check(layer, n, window)


@pytest.mark.parametrize("kv", ["k=k4,v=q8_0", "k=k4,v=f16"])
def test_values_may_have_another_format(kv) -> None:
    pair = Pair(kv)
    for layer in (0, 2):
        pair.read(layer, 300, 7, 1, 70)


def test_the_reference_tells_exact_rows_from_packed_ones() -> None:
    pair = Pair()
    pair.read(0, 300)
    pair.append(0, 5)
    q, mask = queries(5), causal(5, 305)
    want = pair.rows[0].attend(q, mask, 5)
    for run in (0, 4, 6, 70, 300):
        assert np.abs(pair.rows[0].attend(q, mask, run) - want).max() > 3 * CLOSE


@pytest.mark.parametrize("window", [None, 6, 100])
@pytest.mark.parametrize("before", [0, 5, 130, 300])
@pytest.mark.parametrize("n", [1, 9, 64])
def test_a_tree_reads_itself_and_what_is_near_exactly(window, before, n) -> None:
    pair, rng = Pair(), np.random.default_rng(n)
    pair.read(0, before)
    pair.append(0, n)
    among = np.tril(rng.random((n, n)) < 0.5) | np.eye(n, dtype=bool)
    mask, q = causal(n, before + n, window), queries(n)
    mask[:, before:] = among  # no window among the nodes
    rule = PLAIN if window is None else ScoreRule(window=window)
    got = tree_attention(q, pair.cache.stored(0), seen=seen_words(among), rule=rule)
    want = hadamard(pair.rows[0].attend(q, mask, n).astype(np.float32), value_block(D))
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=CLOSE)


@pytest.mark.parametrize("before", [0, 5, 130])
@pytest.mark.parametrize("sizes", [(50, 50, 50), (200, 30), (30, 200), (64, 1), (20, 44), (1, 1, 1), (128, 128, 3)])
def test_tokens_that_come_in_pieces_before_any_attends_are_one_run(before, sizes) -> None:
    pair = Pair()
    pair.read(0, before)
    pair.append(0, *sizes)
    pair.check(0, sum(sizes))
    pair.read(0, 3, 70, 1)  # and what follows is no part of it


def test_runs_follow_each_other() -> None:
    pair = Pair()
    pair.read(1, 90, 1, 1, 1, 64, 65, 2, 128, 1, 200)


def test_layers_that_take_turns_do_not_mix_their_runs() -> None:
    pair = Pair()
    for n in (200, 3, 70, 1, 100):
        for layer in range(3):
            pair.read(layer, n)
    pair.append(0, 80)
    pair.append(1, 10)
    pair.check(1, 10)
    pair.check(0, 80)
    pair.append(0, 200)
    pair.append(1, 200)  # a long run is kept of one layer at a time
    pair.append(0, 10)
    pair.check(0, 10)


@pytest.mark.parametrize("left", [0, 1, 63, 150, 296, 299])
def test_what_is_cropped_is_unpacked(left) -> None:
    pair = Pair()
    for layer in range(3):
        pair.read(layer, 280, 20)
    pair.cache.crop(left)
    for layer, rows in pair.rows.items():
        rows.drop(left)
        pair.read(layer, 6, 100, 1)


def test_a_crop_to_what_all_layers_hold_changes_nothing() -> None:
    pair = Pair()
    for layer in range(3):
        pair.read(layer, 150)
    pair.cache.crop(150)
    pair.read(1, 5)


@pytest.mark.parametrize(("n", "dropped"), [(20, 15), (64, 64), (1, 1), (100, 40)])
def test_tokens_that_were_rejected_leave_the_exact_rows_before_them(n, dropped) -> None:
    pair = Pair()
    for layer in range(3):
        pair.read(layer, 300, n)
    pair.cache.count(-dropped)
    for layer, rows in pair.rows.items():
        rows.keep(list(range(300 + n - dropped)))
        pair.read(layer, 4, 1)


def test_many_that_were_rejected_have_overwritten_them() -> None:
    pair = Pair()
    for layer in range(3):
        pair.read(layer, 300, 100)
    pair.cache.count(-40)
    for rows in pair.rows.values():
        rows.keep(list(range(360)))
    pair.cache.count(-35)  # 75 in all
    for layer, rows in pair.rows.items():
        rows.drop(325)
        pair.read(layer, 4, 90)


def test_a_checkpoint_is_gone_back_to_after_any_number_of_tokens() -> None:
    pair = Pair()
    for layer in range(3):
        pair.read(layer, 200)
    before = Checkpoint.of(pair.cache)
    for layer in range(3):
        pair.read(layer, *[1] * 150)
    before.restore(pair.cache)
    for layer, rows in pair.rows.items():
        rows.drop(200)
        pair.read(layer, 2, 65)


@pytest.mark.parametrize(
    "steps", [(200, -60, 1, -60, 1), (700, "crop", -20, 1), (700, "crop", 5, -25, 1), (700, "copy", -20, 1)], ids=str
)
def test_going_back_twice_reads_no_row_that_was_overwritten(steps) -> None:
    cache = Cache(DENSE, 900, "4bit", bases=BASES)
    for seed, step in enumerate(steps):
        if step == "crop":
            cache.crop(300)
        elif step == "copy":
            copied = Cache(DENSE, 900, "4bit", bases=BASES)
            copy_cache(cache, copied, 300)
            cache = copied
        elif step < 0:
            cache.count(step)
        else:
            for layer in range(3):
                cache.append(layer, *tokens(step, 10 * seed + layer))
                cache.gather(layer)
    for layer in range(3):
        at = cache.stored(layer)
        for rows, packed in zip(at.gather(), replace(at, recent=None).gather(), strict=True):
            apart = np.square(rows - packed).sum((1, 2)) / np.square(packed).sum((1, 2))
            assert apart.max() < 0.1


def test_tokens_of_replays_are_known_by_their_count() -> None:
    pair = Pair()
    for layer in range(3):
        pair.read(layer, 200)
    ring = pair.cache.stored(0).recent
    assert ring is not None
    ring.end()
    assert not ring.count(200 + NEAR), "nodes of a tree that a replay has stored"
    assert not ring.count(200), "none of them was kept: what is near was there before"
    assert ring.count(199), "the row of the first one near has been overwritten"


@pytest.mark.parametrize("before", [3, 125, 300])
def test_a_path_of_a_tree_moves_with_its_exact_rows(before) -> None:
    pair, path = Pair(), [0, 2, 3]
    for layer in range(3):
        pair.read(layer, before, 8)
    pair.cache.move(8, np.array([*path, 7]), np.array([3]))
    pair.cache.count(-5)
    for layer, rows in pair.rows.items():
        rows.keep([*range(before), *(before + node for node in path)])
        pair.read(layer, 2, 1, 70)


def test_a_cache_that_is_reset_is_a_new_one() -> None:
    pair, new = Pair(), Pair()
    pair.read(0, 200, 5)
    pair.cache.reset()
    pair.rows, pair.seed = new.rows, 0
    for layer in range(3):
        pair.read(layer, 4, 66, 1)
    assert pair.cache.tokens == 71


def test_layers_that_are_released_one_after_the_other_keep_nothing() -> None:
    pair = Pair(layers=1)
    for layer in range(3):
        pair.append(layer, 128, 128, 30)
        pair.check(layer, 286)
        pair.cache.release(layer)
        assert pair.cache.stored(layer).recent.run.owner is None, "its rows are freed"
    pair.cache.reset()
    pair.rows[1].keep([])
    pair.read(1, 5, 1)


def on(cache: Cache, *sizes: int) -> list[np.ndarray]:
    """What runs give that follow the tokens of a cache, in all layers."""
    found = []
    for n in sizes:
        for layer in range(3):
            cache.append(layer, *tokens(n, 1000 + layer))
            found.append(paged_attention(queries(n), cache.stored(layer)))
    return found


def equal(got: list[np.ndarray], want: list[np.ndarray]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(got, want, strict=True))


def read_all(cache: Cache, *sizes: int) -> Cache:
    on(cache, *sizes)
    return cache


SIZES = (200, 100, 1, 7, 64)


@pytest.mark.parametrize("last", SIZES)
def test_a_copy_goes_on_as_its_source_does(last) -> None:
    source, larger, parked = (Cache(DENSE, size, "4bit", bases=BASES) for size in (600, 900, 600))
    read_all(source, 150, last)
    copy_cache(source, larger, source.tokens)
    ParkedCache.of(source, HostBuffer("cpu")).put(parked)
    want = on(source, 1, 5, 65, 1)
    assert equal(on(larger, 1, 5, 65, 1), want)
    assert equal(on(parked, 1, 5, 65, 1), want)


@pytest.mark.parametrize("last", SIZES)
def test_sessions_fork_grow_and_are_parked_without_a_trace(last) -> None:
    whole = read_all(Cache(DENSE, 2000, "4bit", bases=BASES), 150, last)
    session = SessionCache(DENSE, "4bit", bases=lambda _: BASES)
    with session.reading(150) as cache:
        on(cache, 150)
    small = session.cache.capacity
    with session.reading(last) as cache:
        on(cache, last)
    fork = session.fork(session.tokens)
    assert session.park()
    held = session.host_nbytes
    assert held >= session._parked.nbytes >= 3 * 2 * 128 * HEADS * 2 * D
    want = on(whole, 5, 300, 1)
    for one in (session, fork):
        with one.reading(306) as cache:
            assert equal(on(cache, 5, 300, 1), want)
        assert one.cache.capacity > small
    assert not session.host_nbytes


def test_a_fork_of_fewer_tokens_and_one_from_a_file_unpack_them() -> None:
    session = SessionCache(DENSE, "4bit", bases=lambda _: BASES)
    with session.reading(300) as cache:
        on(cache, 300)
    contents = session.changes(full=True).contents
    assert not contents.rings
    assert contents.nbytes == sum(k.nbytes + v.nbytes for k, v in contents.pages.values())
    other = SessionCache(DENSE, "4bit", bases=lambda _: BASES)
    other.put(contents, {})
    cropped = read_all(Cache(DENSE, 700, "4bit", bases=BASES), 300)
    cropped.crop(0)
    cropped.crop(300)  # as many tokens, in pages alone
    with other.reading(6) as cache:
        assert equal(on(cache, 6), on(cropped, 6))
    fork = session.fork(270)
    assert session.park()
    assert session.rewind_to(270) == 270
    assert not session._parked.rings
    whole = read_all(Cache(DENSE, 700, "4bit", bases=BASES), 300)
    whole.crop(270)
    want = on(whole, 6)
    for one in (fork, session):
        with one.reading(6) as cache:
            assert equal(on(cache, 6), want)


def test_a_session_that_failed_in_the_middle_of_its_layers_forks_at_its_last_token() -> None:
    session = SessionCache(DENSE, "4bit", bases=lambda _: BASES)
    with session.reading(150) as cache:
        on(cache, 150)

    def read_half() -> None:
        with session.reading(30) as cache:
            cache.append(0, *tokens(30, 5))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_half()
    fork = session.fork(150)
    assert session.rewind_to(150) == fork.tokens == 150
    results = []
    for one in (fork, session):
        with one.reading(4) as cache:
            results.append(on(cache, 4))
    assert equal(*results)


def test_bytes_of_the_exact_rows_are_counted() -> None:
    exact = 3 * 2 * 128 * HEADS * 2 * D
    cache = Cache(DENSE, 300, "4bit", bases=BASES)
    assert cache.ring_nbytes == exact
    assert cache.peak_nbytes == exact
    assert cache.nbytes == exact + 3 * 3 * 128 * HEADS * 72
    assert not Cache(DENSE, 300, "5bit", bases=BASES).ring_nbytes
