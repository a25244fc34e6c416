"""Parts of a constructed retriever: a residual stream of slots, and the layers that move codes between them.

Every token has a unit-norm code. The residual stream is a row of slots of one code each, then a constant. A layer here
reads a slot (or the constant), moves what it read along the sequence, and writes it into another slot. `energy` is the
squared norm of the stream where a layer reads it; RMSNorm scales the stream by ``sqrt(hidden / energy)``, and the
layers that read it undo exactly that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sp.arrays import Doubles, Ints
from sp.models.config import DeltaConfig

CONSTANT_DIMS = 32  # one block of Q8_0 or Q4_0, so that the constant does not coarsen the codes next to it
OPEN = 16.0  # sigmoid(16) = 1 - 1e-7: an open gate
OFFSET_FREQUENCY = 1e-3  # rad per token; offset heads use the RoPE pairs that rotate faster
STILL = 0.35  # rad; a pair that rotates by less over the whole context counts as position-free
OFFSET_LOGIT = 150.0
MATCH_LOGIT = 200.0

Tensors = dict[str, Doubles]


@dataclass(frozen=True)
class Residual:
    """The residual stream: named slots of `code_dim` values, then the constant.

    >>> stream = Residual(48, ("current", "previous_1"))
    >>> stream.hidden, stream.read_slot("previous_1", energy=2.0).shape
    (128, (48, 128))
    """

    code_dim: int
    slots: tuple[str, ...]

    @property
    def _constant_start(self) -> int:
        return -(-len(self.slots) * self.code_dim // 32) * 32

    @property
    def hidden(self) -> int:
        """Width; a multiple of 32, as block formats require."""
        return self._constant_start + CONSTANT_DIMS

    def embedding(self, codes: Doubles) -> Doubles:
        """Return the embedding: a token's code in the first slot, and the constant (squared norm 1 each)."""
        table = np.zeros((len(codes), self.hidden))
        table[:, : self.code_dim] = codes
        table[:, self._constant_start :] = CONSTANT_DIMS**-0.5
        return table

    def read_slot(self, slot: str, energy: float) -> Doubles:
        """Return rows (code_dim, hidden) that extract the slot's code from the normed stream."""
        start = self.slots.index(slot) * self.code_dim
        rows = np.zeros((self.code_dim, self.hidden))
        rows[:, start : start + self.code_dim] = np.eye(self.code_dim) * math.sqrt(energy / self.hidden)
        return rows

    def read_constant(self, energy: float) -> Doubles:
        """Return a row (1, hidden) that extracts 1 from the normed stream, whatever the token."""
        row = np.zeros((1, self.hidden))
        row[:, self._constant_start :] = math.sqrt(energy / self.hidden / CONSTANT_DIMS)
        return row

    def write(self, slot: str, columns: Doubles) -> Doubles:
        """Return columns (code_dim, n) as columns (hidden, n) that add into the slot."""
        start = self.slots.index(slot) * self.code_dim
        out = np.zeros((self.hidden, columns.shape[1]))
        out[start : start + self.code_dim] = columns
        return out


@dataclass(frozen=True)
class Heads:
    """Shape of the attention layers.

    >>> heads = Heads(4, 2, head_dim=128, rope_dim=128, rope_base=1e9, gated=False)
    >>> len(heads.still_dims(131072)), len(heads.still_dims(4096))
    (48, 70)
    """

    count: int
    kv_count: int
    head_dim: int
    rope_dim: int
    rope_base: float
    gated: bool

    @property
    def frequencies(self) -> Doubles:
        """RoPE frequencies (rope_dim / 2,), fastest first, in rad per token."""
        return self.rope_base ** (-np.arange(0, self.rope_dim, 2) / self.rope_dim)

    def still_dims(self, context: int) -> Ints:
        """Return the dimensions of a head that position leaves nearly unchanged: the slowest pairs, and all beyond
        `rope_dim`."""
        pairs = np.flatnonzero(self.frequencies * context < STILL)
        return np.concatenate([pairs, pairs + self.rope_dim // 2, np.arange(self.rope_dim, self.head_dim)])

    def tensors(self, stream: Residual, energy: float, q: Doubles, k: Doubles, out: Doubles, logit: float) -> Tensors:
        """Return the tensors of an attention layer whose values are the codes of the first slot. The norms bring
        queries and keys to length sqrt(head_dim), so only their gains determine the largest logit. `stream`, `energy`:
        as in `offset_layer`. `q`: float64 (count, head_dim, hidden). `k`: float64 (kv_count, head_dim, hidden). `out`:
        float64 (hidden, count, code_dim). `logit`: logit of a query and key that agree."""
        hidden, m = stream.hidden, stream.code_dim
        if self.gated:
            gate = np.broadcast_to(OPEN * stream.read_constant(energy), q.shape)
            q = np.concatenate([q, gate], axis=1)  # per head: query rows, then gate rows
        values = np.zeros((self.kv_count, self.head_dim, hidden))
        values[:, :m] = stream.read_slot(stream.slots[0], energy)
        output = np.zeros((hidden, self.count, self.head_dim))
        output[..., :m] = out
        gain = np.full(self.head_dim, math.sqrt(logit / math.sqrt(self.head_dim)))
        return {
            "attn_q.weight": q.reshape(-1, hidden),
            "attn_k.weight": k.reshape(-1, hidden),
            "attn_v.weight": values.reshape(-1, hidden),
            "attn_output.weight": output.reshape(hidden, -1),
            "attn_q_norm.weight": gain,
            "attn_k_norm.weight": gain,
        }


def offset_layer(
    stream: Residual, energy: float, heads: Heads, writes: Mapping[int, str], rng: np.random.Generator
) -> Tensors:
    """Build attention whose head h looks exactly h + 1 positions back; `writes` names the slot each lag goes to.

    Queries and keys are constants, so the logit depends on distance only: with the query rotated back by the lag it is
    ``sum_j a_j cos(theta_j (distance - lag))``, which only the right distance maximises. Weights ``a_j`` fall as
    ``sqrt(theta_j)``: the fast pairs separate neighbours, the slower ones separate far positions. Each kv head has
    phases of its own. `energy`: squared norm of the stream that enters the layer. `writes`: lag, 1 to ``heads.count``,
    to slot. Heads of other lags attend too, but write nothing. `rng`: draws the phases. Returns tensors by GGUF name,
    without the ``blk.N.`` prefix.
    """
    theta = heads.frequencies[heads.frequencies > OFFSET_FREQUENCY]
    # Squared amplitudes sum to head_dim, the squared length that the norms produce.
    amplitude = np.sqrt(heads.head_dim * np.sqrt(theta) / np.sqrt(theta).sum())
    phases = rng.uniform(-np.pi, np.pi, (heads.kv_count, len(theta)))

    def rotated(phase: Doubles) -> Doubles:
        vector = np.zeros(heads.head_dim)
        vector[: len(theta)] = amplitude * np.cos(phase)
        vector[heads.rope_dim // 2 :][: len(theta)] = amplitude * np.sin(phase)
        return vector[:, None] * stream.read_constant(energy)

    group = heads.count // heads.kv_count
    q = np.stack([rotated(phases[h // group] - theta * (h + 1)) for h in range(heads.count)])
    k = np.stack([rotated(phase) for phase in phases])
    out = np.zeros((stream.hidden, heads.count, stream.code_dim))
    for lag, slot in writes.items():
        out[:, lag - 1] = stream.write(slot, np.eye(stream.code_dim))
    return heads.tensors(stream, energy, q, k, out, OFFSET_LOGIT)


def match_layer(
    stream: Residual,
    energy: float,
    heads: Heads,
    previous: Sequence[str],
    output: tuple[str, float],
    context: int,
    rng: np.random.Generator,
) -> Tensors:
    """Build attention from the last n tokens to every place that the same n tokens precede; it copies what followed.

    The query holds the current and the previous n - 1 codes, the key the previous n, each through one projection per kv
    head (orthonormal as far as the dimensions allow) into the dimensions that position leaves nearly unchanged. All
    heads do the same and share the output. `stream`, `energy`, `heads`: as in `offset_layer`. `previous`: slots of the
    n tokens before, nearest first. `output`: slot and magnitude of the answer's code. `context`: positions over which a
    dimension must stay nearly unchanged. `rng`: draws the projections. Returns as in `offset_layer`.
    """
    dims = heads.still_dims(context)
    n, m = len(previous), stream.code_dim
    group = heads.count // heads.kv_count
    q: list[Doubles] = []
    k: list[Doubles] = []
    for _ in range(heads.kv_count):
        # QR gives orthonormal columns; with too few dimensions its transpose is as close as possible.
        shape = (max(n * m, len(dims)), min(n * m, len(dims)))
        basis = np.linalg.qr(rng.standard_normal(shape))[0]
        projection = (basis.T if n * m >= len(dims) else basis).reshape(len(dims), n, m)
        for slots, into in (((stream.slots[0], *previous[:-1]), q), (previous, k)):
            rows = np.zeros((heads.head_dim, stream.hidden))
            rows[dims] = sum(projection[:, i] @ stream.read_slot(slot, energy) for i, slot in enumerate(slots))
            into.append(rows)
    slot, factor = output
    out = np.zeros((stream.hidden, heads.count, m))
    out[:] = stream.write(slot, np.eye(m) * factor / heads.count)[:, None]
    return heads.tensors(stream, energy, np.repeat(q, group, axis=0), np.stack(k), out, MATCH_LOGIT)


AMPLITUDE = 4.0  # magnitude of a code entry at the convolution
OUTPUT_GATE = 8.0  # large enough for silu to be linear to 0.03 %, small enough for f16


def _silu(x: float) -> float:
    return x / (1.0 + math.exp(-x))


def delta_layer(
    stream: Residual, energy: float, sizes: DeltaConfig, writes: Mapping[int, str], rng: np.random.Generator
) -> Tensors:
    """Build Gated DeltaNet whose value head p carries the code of p tokens ago; `writes` names the slot of each lag.

    Lags come from one-tap convolutions. Code entries enter twice, with both signs, since silu(x) - silu(-x) = x. Keys
    are constants and beta is 1, so each delta-rule step replaces the whole memory, whatever the decay; the decay is
    therefore random, different for every token, and only the right order of decay, delta and read-out cancels it. The
    query of key head 1 has the opposite sign of its key, so that value heads that read the wrong key head give the
    wrong sign. Entries of a code have one magnitude, so the gated norm divides by a known number. `stream`: its codes
    have entries of equal magnitude; ``2 * code_dim <= head_dim``. `energy`: squared norm of the stream that enters the
    layer. `sizes`: two key heads. `writes`: lag, below the number of value heads and of taps, to slot. `rng`: draws
    keys, queries and decays. Returns tensors by GGUF name, without the ``blk.N.`` prefix.
    """
    m, hidden, dim = stream.code_dim, stream.hidden, sizes.head_dim
    assert 2 * m <= dim, f"code_dim {m}, head_dim {dim}"
    assert sizes.key_heads == 2, f"key_heads {sizes.key_heads}"
    constant, current = stream.read_constant(energy), stream.read_slot(stream.slots[0], energy)
    lags = range(sizes.value_heads)
    signs = [1.0 if p % sizes.key_heads == 0 else -1.0 for p in lags]

    values = np.zeros((sizes.value_heads, dim, hidden))
    values[:, :m] = current * math.sqrt(m) * AMPLITUDE
    # Both signs, so that the difference of their silu is linear.
    values[:, m : 2 * m] = -values[:, :m]
    q = rng.uniform(1.0, AMPLITUDE, (sizes.key_heads, dim))
    q[1] = -rng.uniform(0.5, 2.0, dim)
    k = rng.uniform(1.0, AMPLITUDE, (sizes.key_heads, dim))
    taps = np.zeros((sizes.conv_dim, sizes.conv_kernel))
    # q and k pass the convolution unchanged: one tap, at the current token.
    taps[: 2 * sizes.key_dim, -1] = 1.0
    for p in lags:
        start = 2 * sizes.key_dim + p * dim
        taps[start : start + dim, -1 - p] = 1.0

    high, low = _silu(AMPLITUDE), _silu(-AMPLITUDE)
    normed = AMPLITUDE / math.sqrt((high**2 + low**2) * m / dim)  # an entry (both signs joined) after the gated norm
    # The output undoes the gated norm, the code's scale and the gate.
    undo = 1.0 / (normed * math.sqrt(m) * _silu(OUTPUT_GATE))
    out = np.zeros((hidden, sizes.value_heads, dim))
    for lag, slot in writes.items():
        out[:, lag, :m] = stream.write(slot, np.eye(m) * undo * signs[lag])
    out[..., m : 2 * m] = -out[..., :m]
    return {
        "attn_qkv.weight": np.concatenate(
            [q.reshape(-1, 1) * constant, k.reshape(-1, 1) * constant, values.reshape(-1, hidden)]
        ),
        "attn_gate.weight": np.repeat(OUTPUT_GATE * constant, sizes.value_dim, axis=0),
        "ssm_alpha.weight": rng.standard_normal((sizes.value_heads, m)) @ current,
        "ssm_beta.weight": np.repeat(OPEN * constant, sizes.value_heads, axis=0),
        "ssm_conv1d.weight": taps,
        "ssm_a": -rng.uniform(0.2, 1.0, sizes.value_heads),
        "ssm_dt.bias": rng.uniform(-1.0, 1.0, sizes.value_heads),
        "ssm_norm.weight": np.ones(dim),
        "ssm_out.weight": out.reshape(hidden, -1),
    }
