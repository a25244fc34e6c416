"""FlashPrefill: select the key blocks of a query block, by energies against mean keys and a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.errors import ConfigError
from sp.kernels import current_path, import_cupy, is_device
from sp.kernels.specs.flashprefill import BLOCK_SELECT, BLOCK_SELECT_SM90, variant
from sp.ops.attention.key_blocks import BLOCK, BlockLists
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.sparse.block_energy import SMALLEST, block_energy
from sp.ops.sparse.block_lists import candidates, causal, forced, lists_of
from sp.ops.sparse.block_means import block_means

HEAD_DIMS = (64, 128, 256)  # head sizes that the kernels support


class Numbers(NamedTuple):
    """Arguments of block_select for a rule; its source describes each."""

    rule: int = 0
    alpha: float = 0.0
    share: float = 0.0
    least: int = 0
    most: int = 0
    unforced: int = 0


class EnergyRule(Protocol):
    """A rule that selects by energies: `FlashPrefill`, `TopDensity`, and those of `sp.ops.sparse.block_budget`."""

    @property
    def sink(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def last_n(self) -> int: ...
    @property
    def share(self) -> str: ...
    @property
    def visibility(self) -> str: ...

    def mask(self, energy: Floats, n: int, tokens: int) -> Bools:
        """Return the mask of selected blocks, from energies (lists, query_blocks, blocks), in that shape."""
        ...

    def numbers(self) -> Numbers:
        """Return the rule as kernel arguments."""
        ...


@dataclass(frozen=True)
class FlashPrefill:
    """Select a block if its energy (`block_energy`) is at least `alpha` times the largest of its query block.

    Parameters
    ----------
    alpha : float
        From 0 (selects all) to 1.
    sink, window, last_n : int
        Always selected: the first `sink` blocks, the `window` blocks that end at the diagonal (at least 1, so that
        every row sees itself), and all blocks for the last `last_n` query blocks.
    min_budget : int
        Number of strongest blocks that are selected whatever the threshold.
    maximum : {"all", "unforced"}
        The blocks over which the largest energy is taken. With ``all`` a strong sink raises the threshold.
    share : {"head", "group"}
        A list for each query head, or one for the query heads of a KV head, whose rows are then scored as one set.
    visibility : {"last", "first"}
        A row scores a block if it sees the block's last token, or its first.
    mean_correction : bool
        Omitted blocks enter the softmax as one key and value each, their means, weighted by their size.

    References
    ----------
    Fan et al., "FlashPrefill", 2026; "FlashPrefill v2", 2026 (``share="group"``, ``visibility="first"``,
    ``mean_correction=True``; there a set is 128 rows of all heads, here 128 tokens of all heads).

    Examples
    --------
    >>> FlashPrefill(0.1).window
    4
    >>> FlashPrefill(1.5)
    Traceback (most recent call last):
        ...
    sp.errors.ConfigError: FlashPrefill: alpha is 1.5; it must be from 0 to 1
    """

    alpha: float
    sink: int = 2
    window: int = 4
    last_n: int = 2
    min_budget: int = 0
    maximum: Literal["all", "unforced"] = "all"
    share: Literal["head", "group"] = "head"
    visibility: Literal["last", "first"] = "last"
    mean_correction: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:  # NaN too
            raise ConfigError(f"FlashPrefill: alpha is {self.alpha}; it must be from 0 to 1")
        if self.min_budget < 0:
            raise ConfigError(f"FlashPrefill: min_budget is {self.min_budget}; it must not be negative")
        check_forced("FlashPrefill", self.sink, self.window, self.last_n)
        check_word("FlashPrefill", "maximum", self.maximum, ("all", "unforced"))
        check_word("FlashPrefill", "share", self.share, ("head", "group"))
        check_word("FlashPrefill", "visibility", self.visibility, ("last", "first"))

    def select(self, q: Floats, at: PagedKV, scale: float) -> BlockLists:
        """Return lists for each query head and query block; see `sp.ops.sparse.block_selector.BlockSelector`."""
        return by_energy(self, q, at, scale)

    def mask(self, energy: Floats, n: int, tokens: int) -> Bools:
        """Return the mask of selected blocks, from energies (lists, query_blocks, blocks), in that shape."""
        always = forced(n, tokens, self.sink, self.window, self.last_n)
        seen = causal(n, tokens)
        judged = seen & ~always if self.maximum == "unforced" else seen
        largest = np.where(judged, energy, 0).max(axis=2, keepdims=True)
        bound = np.maximum(self.alpha * largest, SMALLEST) if self.alpha else np.zeros_like(largest)
        kept: Bools = (energy >= bound) & seen | always
        if self.min_budget:
            budget = np.minimum(self.min_budget, candidates(n, tokens))
            kept |= strongest(np.where(seen, energy, -1), budget)
        return kept

    def numbers(self) -> Numbers:
        """Return the rule as kernel arguments."""
        return Numbers(alpha=self.alpha, least=self.min_budget, unforced=int(self.maximum == "unforced"))


@dataclass(frozen=True)
class TopDensity:
    """Select the forced blocks and the strongest others of each query block, up to a share of its visible blocks.

    For timing with inputs whose attention is flat, such as random weights; the scores are those of `FlashPrefill`.

    Parameters
    ----------
    density : float
        Above 0, at most 1. For ``v`` visible blocks ``ceil(density * v)`` are selected, or the forced ones if more.
    sink, window, last_n, share, visibility
        As in `FlashPrefill`.
    """

    density: float
    sink: int = 2
    window: int = 4
    last_n: int = 2
    share: Literal["head", "group"] = "head"
    visibility: Literal["last", "first"] = "last"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigError(f"TopDensity: density is {self.density}; it must be above 0 and at most 1")
        check_forced("TopDensity", self.sink, self.window, self.last_n)
        check_word("TopDensity", "share", self.share, ("head", "group"))
        check_word("TopDensity", "visibility", self.visibility, ("last", "first"))

    def select(self, q: Floats, at: PagedKV, scale: float) -> BlockLists:
        """Return lists for each query head and query block; see `sp.ops.sparse.block_selector.BlockSelector`."""
        return by_energy(self, q, at, scale)

    def mask(self, energy: Floats, n: int, tokens: int) -> Bools:
        """Return the mask of selected blocks, from energies (lists, query_blocks, blocks), in that shape."""
        always = forced(n, tokens, self.sink, self.window, self.last_n)
        return always | top_density(np.where(always, np.inf, energy), self.density, n, tokens)

    def numbers(self) -> Numbers:
        """Return the rule as kernel arguments."""
        return Numbers(share=self.density)


def by_energy(rule: EnergyRule, q: Any, at: PagedKV, scale: float) -> BlockLists:
    """Score the blocks by their mean keys and list those that the rule selects."""
    check_sizes(q, at)
    means = block_means(at.k, at.table, at.tokens, at.fmt)
    if at.basis is not None:  # the shift differs between rows, which share one maximum, so it must be added back
        means = (means + at.basis.shift[:, None]).astype(means.dtype)
    if is_device(q):
        return select_on_device(rule, q, means, at.tokens, scale)
    together = q.shape[1] // means.shape[0] if rule.share == "group" else 1
    energy = block_energy(q, means, at.tokens, scale, together, rule.visibility)
    return lists_of(rule.mask(energy, len(q), at.tokens).repeat(together, axis=0), rule.last_n)


def top_density(scores: Floats, density: float, n: int, tokens: int) -> Bools:
    """Return the ``ceil(density * v)`` largest scores of each row's ``v`` candidates; the first on a tie. `scores`:
    float32 (lists, query_blocks, blocks), not negative; +inf for blocks that come first; `n`, `tokens`: queries and
    tokens, for the candidates.

    >>> scores = np.array([[[1.0, 9, 9], [3.0, 1, 9], [3.0, 1, 3]]])
    >>> top_density(scores, 0.6, 384, 384).astype(int).tolist()
    [[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]
    """
    seen = causal(n, tokens)
    # In float32, as on the device, where a product just above an integer would otherwise yield one more.
    budget = np.ceil(np.float32(density) * candidates(n, tokens).astype(np.float32)).astype(np.int64)
    return strongest(np.where(seen, scores, -1), np.minimum(budget, candidates(n, tokens)))


def strongest(scores: Floats, budget: Ints) -> Bools:
    """Return the mask of the `budget` largest scores (lists, query_blocks, blocks) of each row; the first on a tie.
    `budget` is (query_blocks,), or (lists, query_blocks)."""
    order = np.argsort(-scores, axis=2, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(scores.shape[2])[None, None], axis=2)
    kept: Bools = rank < budget[..., None]
    return kept


def check_forced(name: str, sink: int, window: int, last_n: int) -> None:
    """Raise ConfigError unless the numbers of forced blocks are valid."""
    if sink < 0 or last_n < 0:
        raise ConfigError(f"{name}: sink is {sink}, last_n {last_n}; they must not be negative")
    if window < 1:
        raise ConfigError(f"{name}: window is {window}; it must be at least 1, or rows would not see their own block")


def check_word(name: str, option: str, value: str, known: tuple[str, ...]) -> None:
    """Raise ConfigError unless the value is known."""
    if value not in known:
        raise ConfigError(f"{name}: {option} is {value!r}; known are {', '.join(known)}")


def check_sizes(q: Any, at: PagedKV) -> None:
    """Raise ConfigError for an empty prompt, or pages and heads that the kernels do not support."""
    n, heads, d = q.shape
    if not 1 <= n <= at.tokens:
        raise ConfigError(
            f"sparse attention: {n} queries of {at.tokens} tokens; there must be at least one, and no more"
        )
    if heads % at.kv_heads:
        raise ConfigError(f"sparse attention: {heads} query heads do not divide among {at.kv_heads} kv heads")
    if is_device(q):
        if at.k.shape[1] != BLOCK:
            raise ConfigError(f"sparse attention: pages of {at.k.shape[1]} tokens; a page is a block of {BLOCK}")
        if d not in HEAD_DIMS:
            raise ConfigError(f"sparse attention: heads of {d} values; the kernels take {HEAD_DIMS}")


def select_on_device(options: EnergyRule, q: Any, means: Any, tokens: int, scale: float) -> BlockLists:
    """Score against mean keys (kv_heads, blocks, d) and list blocks, in one launch."""
    cupy = import_cupy()
    n, heads, d = q.shape
    kv_heads, blocks, _ = means.shape
    together = heads // kv_heads if options.share == "group" else 1
    rows, rule = -(-n // BLOCK), options.numbers()
    counts, indices = cupy.empty((heads, rows), np.int32), cupy.empty((heads, rows, blocks), np.int32)
    kernel = BLOCK_SELECT_SM90 if current_path() == "sm_90a" else BLOCK_SELECT
    kernel.launch(
        (heads // together * rows,),
        q,
        means,
        counts,
        indices,
        n,
        tokens,
        heads,
        kv_heads,
        together,
        blocks,
        options.sink,
        options.window,
        options.last_n,
        rule.least,
        int(options.visibility == "last"),
        rule.unforced,
        rule.alpha,
        rule.share,
        scale * float(np.log2(np.e)),
        rule.most,
        defines=variant(d, blocks, rule.rule),
    )
    return BlockLists(counts, indices, min(options.last_n, rows))
