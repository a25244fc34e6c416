"""The table of turns says what records say: the newest of a configuration, errors, limits, sums of stages."""

from __future__ import annotations

from typing import Any

from sp.studies.tables.turn_page import turn_rows


def record(seconds: float, error: str | None = None, **config: Any) -> dict[str, Any]:
    stages = {"tokenise": 0.01, "select": 0.02, "recall": 0.003, "draft": 0.05, "score": 0.006, "target prefill": 0.1}
    metrics: dict[str, Any] = {"error": error, "turns": 5, "stages": {} if error else stages}
    if not error:
        usage = {"read": 1234, "recalled": 99}
        metrics |= {"ttft_p50_s": seconds, "ttft_p95_s": 2 * seconds, "usage": usage, "peak_bytes": 3 << 30}
    plain = {
        "target": "t", "drafter": "d", "prompt_tokens": 131072, "new_tokens": 4096, "policy": "conversation",
        "recall": "auto", "keys": "f16", "kv": "f16", "density": 0.05, "vram": None, "keep_ratio": 0.1,
        "scorer": "tail", "path": "sm_90a",
    }  # fmt: skip
    return {"bench": "turn", "config": plain | config, "metrics": metrics, "gpu": "Card", "commit": "abcdef0123"}


def test_rows_are_the_newest_of_each_configuration_in_order() -> None:
    page = turn_rows([
        record(0.9), record(0.67, policy="prefix", recall="off", drafter=None), record(0.2),
        record(0.3, vram="23g", keys="q4_0"), record(0.0, "full", vram="16g"), {"bench": "ttft"},
    ])  # fmt: skip
    lines = [line for line in page.splitlines() if line.startswith("| ")][1:]
    rest = "| 33 | 56 | 100 | 1,234 | 99 | 3.0 |"
    assert lines == [
        f"| conversation, recall auto, keys f16, density 0.05, cache f16 | none | 0.200 | 0.400 {rest}",
        f"| conversation, recall auto, keys q4_0, density 0.05, cache f16 | 23g | 0.300 | 0.600 {rest}",
        f"| conversation, recall auto, keys f16, density 0.05, cache f16 | 16g | no room {'|  ' * 7}|",
        f"| all, read in full, cache f16 | none | 0.670 | 1.340 {rest}",
    ]
    assert "t with d, Card, path sm_90a; 4,096 new tokens after 131,072" in page
    assert "commit abcdef0." in page
