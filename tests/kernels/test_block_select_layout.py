"""block_select as a whole on an emulated block: energies, every rule and the lists, against the NumPy twin."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from host_code import aligned, compiled, hosted, pointer
from pairwise import covering

from sp.kernels.specs.flashprefill import threads, variant
from sp.ops.attention.key_blocks import BLOCK, BlockLists
from sp.ops.sparse.block_budget import ConstantBlocks, EnergyBlocks, SqrtBlocks
from sp.ops.sparse.block_energy import block_energy
from sp.ops.sparse.block_lists import mask_of
from sp.ops.sparse.flashprefill import EnergyRule, FlashPrefill, TopDensity

JOB = """
struct Job {
    const u16 *q, *means;
    i32 *counts, *indices;
    i32 n, tokens, heads, kv_heads, together, width, sink, window, last_n, least, late, unforced, most;
    f32 alpha, share, scale;
};
#define CALL(entry) \\
    entry(j.q, j.means, j.counts, j.indices, j.n, j.tokens, j.heads, j.kv_heads, j.together, j.width, j.sink, \\
          j.window, j.last_n, j.least, j.late, j.unforced, j.alpha, j.share, j.scale, j.most)
"""
PORTABLE = """
static void thread_of(int lane, void* given) {
    const Job& j = *static_cast<Job*>(given);
    threadIdx.x = lane;
    CALL(block_select);
}
extern "C" void run(Job* job, int blocks) {
    for (blockIdx.x = 0; blockIdx.x < unsigned(blocks); ++blockIdx.x) run_warp(thread_of, job);
}
"""
SM90 = """
extern "C" void run(Job* job, int blocks) {
    const Job& j = *job;
    for (blockIdx.x = 0; blockIdx.x < unsigned(blocks); ++blockIdx.x) {
        memset(memory, 0xff, sizeof memory);
        run_block(128, [&] { CALL(block_select_sm90); });
    }
}
"""
FORMS = [("portable", 64, 1), ("sm_90a", 64, 1), ("sm_90a", 128, 1), ("sm_90a", 256, 1)]
"""Path, values of a head, blocks there is room for."""
SMALL: dict[str, Any] = {"sink": 1, "window": 2, "last_n": 1}


@cache
def library(path: str, named: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    defines = dict(named)
    if path == "sm_90a":
        return hosted("block_select_sm90.cu", JOB + SM90, Path(mkdtemp()) / "sm90", **defines)
    given = defines | {"__CUDA_ARCH__": 800, "HOST_LANES": threads(defines)}
    return compiled("block_select.cu", JOB + PORTABLE, given, Path(mkdtemp()), whole=True)


class Job(ctypes.Structure):
    """Arguments of JOB."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("q", "means", "counts", "indices")]
        + [
            (name, ctypes.c_int)
            for name in (
                *("n", "tokens", "heads", "kv_heads", "together", "width", "sink", "window", "last_n", "least"),
                *("late", "unforced", "most"),
            )
        ]
        + [(name, ctypes.c_float) for name in ("alpha", "share", "scale")]
    )


def scale_of(d: int) -> float:
    return 1.6 / d**0.5


def on_the_host(path: str, most: int, rule: EnergyRule, q: np.ndarray, means: np.ndarray, tokens: int) -> np.ndarray:
    """The kernel's lists as a mask."""
    n, heads, d = q.shape
    kv_heads, blocks, _ = means.shape
    together = heads // kv_heads if rule.share == "group" else 1
    rows, told = -(-n // BLOCK), rule.numbers()
    counts, indices = (
        aligned(np.full((heads, rows), -7, np.int32)),
        aligned(np.full((heads, rows, blocks), -7, np.int32)),
    )
    arrays = [aligned(q), aligned(means), counts, indices]
    job = Job(
        *(pointer(array) for array in arrays),
        *(n, tokens, heads, kv_heads, together, blocks, rule.sink, rule.window, rule.last_n, told.least),
        *(
            int(rule.visibility == "last"),
            told.unforced,
            told.most,
            told.alpha,
            told.share,
            scale_of(d) * np.log2(np.e),
        ),
    )
    defines = variant(d, max(most, blocks), told.rule)  # of many numbers of blocks one
    library(path, tuple(defines.items())).run(ctypes.byref(job), heads // together * rows)
    for place in np.ndindex(counts.shape):
        assert (np.diff(indices[place][: counts[place]]) > 0).all()
    return mask_of(BlockLists(counts, indices), blocks)


RULES = [
    FlashPrefill(0.3, **SMALL),
    EnergyBlocks(0.8, least=1, most=99, share="group", visibility="first", **SMALL),
    TopDensity(0.2, **SMALL),
    ConstantBlocks(6, **SMALL),
    ConstantBlocks(1, sink=0, window=1, last_n=0, visibility="first"),
    SqrtBlocks(12, 4096, **SMALL),
    EnergyBlocks(0.5, least=2, most=30, **SMALL),
    EnergyBlocks(0.9, least=0, most=9, sink=0, window=1, last_n=0),
    EnergyBlocks(1.0, least=0, most=99, sink=0, window=1, last_n=0),
]
CASES = [(150, 24 * BLOCK + 17, "random"), (140, 140, "random"), (130, 1100, "ties")]


@pytest.mark.parametrize(
    ("path", "d", "most", "rule", "n", "tokens", "kind"),
    [  # what follows the scores is the same code: larger heads and tiles with two rules and of more than one tile
        (*form, rule, *case)
        for form, rule, case in [
            *covering(FORMS[:2], RULES, CASES),
            *product(FORMS[2:], RULES[:2], CASES[:1]),
        ]
    ],
    ids=str,
)
def test_lists_are_those_of_the_twin(path: str, d: int, most: int, rule: Any, n: int, tokens: int, kind: str) -> None:
    rng, blocks = np.random.default_rng(tokens), -(-tokens // BLOCK)
    q = (2 * rng.standard_normal((n, 2, d))).astype(np.float16)
    means = rng.standard_normal((1, blocks, d)).astype(np.float16)
    if kind == "ties":
        means[:, 1:] = means[:, 1:2]
    got = on_the_host(path, most, rule, q, means, tokens)
    together = 2 if rule.share == "group" else 1
    energy = block_energy(
        q.astype(np.float32), means.astype(np.float32), tokens, scale_of(d), together, rule.visibility
    )
    want = rule.mask(energy, n, tokens).repeat(together, axis=0)
    # Energies that float32 sums in another order move blocks by their bound, or their rank: see how near they are.
    for head, i, j in zip(*np.nonzero(got != want), strict=True):
        row = energy[head // together, i]
        assert kind == "random"
        assert (np.abs(row / row[j] - 1) < 1e-4).sum() > 1 or near(rule, energy, n, tokens)[head // together, i, j]


def near(rule: Any, energy: np.ndarray, n: int, tokens: int) -> np.ndarray:
    """Blocks that a share or a threshold a little larger or smaller decides otherwise on."""
    name = "alpha" if isinstance(rule, FlashPrefill) else "energy"
    value = getattr(rule, name, None)
    if value is None:
        return np.zeros(energy.shape, bool)
    low, high = (replace(rule, **{name: min(1.0, value * f)}).mask(energy, n, tokens) for f in (1 - 1e-4, 1 + 1e-4))
    return low != high


@pytest.mark.parametrize(("path", "d", "most"), FORMS[:2])
def test_values_that_are_no_numbers_stay_within_bounds(path: str, d: int, most: int) -> None:
    means = np.ones((1, 12, d), np.float16)
    means[0, 5] = np.nan
    for rule in (EnergyBlocks(0.5, **SMALL), SqrtBlocks(3, **SMALL)):
        mask = on_the_host(path, most, rule, np.ones((130, 2, d), np.float16), means, 12 * BLOCK)
        assert mask.sum(axis=2).min() > 0
