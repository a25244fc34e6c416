"""Retrievers stop finding values when any part of the forward pass is wrong, and by degrees when all is noisy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from retriever_models import Tensors, accuracy, build, tasks_of


def shuffle_match_keys(tensors: Tensors) -> None:
    name = max(name for name in tensors if name.endswith("attn_k.weight"))
    tensors[name] = np.random.default_rng(0).permutation(tensors[name])


def swap_offset_kv_heads(tensors: Tensors) -> None:
    name = min(name for name in tensors if name.endswith("attn_k.weight"))
    tensors[name] = np.roll(tensors[name], len(tensors[name]) // 2, axis=0)


def gate_rows_after_all_query_rows(tensors: Tensors) -> None:
    for name in ("blk.1.attn_q.weight", "blk.3.attn_q.weight"):
        w = tensors[name]
        tensors[name] = w.reshape(4, 2, 256, -1).transpose(1, 0, 2, 3).reshape(w.shape)


def reverse_taps(tensors: Tensors) -> None:
    for name in ("blk.0.ssm_conv1d.weight", "blk.2.ssm_conv1d.weight"):
        tensors[name] = tensors[name][:, ::-1].copy()


def grouped_value_heads(tensors: Tensors) -> None:
    """Queries and keys as value head p would see them if it read key head p // 2."""
    w = tensors["blk.0.attn_qkv.weight"]
    q, k = w[:256].reshape(2, 128, -1), w[256:512].reshape(2, 128, -1)
    w[:256], w[256:512] = q[::-1].reshape(256, -1), k[::-1].reshape(256, -1)


def memory_that_keeps_the_past(tensors: Tensors) -> None:
    for layer in ("blk.0", "blk.2"):
        tensors[f"{layer}.ssm_a"] *= 0.01  # hardly any decay, and a write strength of 0.02
        tensors[f"{layer}.ssm_beta.weight"] *= -0.25


SPOILERS = [
    ("qwen3", shuffle_match_keys),
    ("qwen3", swap_offset_kv_heads),
    ("qwen35", shuffle_match_keys),
    ("qwen35", swap_offset_kv_heads),
    ("qwen35", gate_rows_after_all_query_rows),
    ("qwen35", reverse_taps),
    ("qwen35", grouped_value_heads),
    ("qwen35", memory_that_keeps_the_past),
]


@pytest.mark.parametrize(("arch", "spoil"), SPOILERS, ids=[f"{arch}-{f.__name__}" for arch, f in SPOILERS])
def test_a_spoiled_part_loses_the_value(tmp_path: Path, arch: str, spoil: Callable[[Tensors], None]) -> None:
    tasks = tasks_of(384, 40, 4)
    assert accuracy(build(tmp_path, arch), tasks[:1]) == 1.0
    assert accuracy(build(tmp_path, arch, spoil), tasks) == 0.0


@pytest.mark.parametrize(
    ("arch", "harmless", "mixed", "fatal"), [("qwen3", 0.02, 0.04, 0.1), ("qwen35", 0.01, 0.02, 0.06)]
)
def test_noise_grades_a_drafter(tmp_path: Path, arch: str, harmless: float, mixed: float, fatal: float) -> None:
    tasks = tasks_of(256, 16, 5)
    grades = [accuracy(build(tmp_path, arch, noise=noise), tasks) for noise in (0.0, harmless, mixed, fatal)]
    assert grades[0] == 1.0
    assert grades[1] >= 0.9
    assert grades[3] <= 0.1
    assert grades == sorted(grades, reverse=True)
