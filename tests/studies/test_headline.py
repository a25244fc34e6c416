"""The headline table: which rows it has, what they are against, and where it is put."""

from __future__ import annotations

from typing import Any

import pytest

from sp.errors import ConfigError
from sp.studies.tables.headline import BEGIN, END, LLAMA_CPP, NOTHING, headline, insert_headline

TARGET = "qwen3.6-27b-q4_k_m.synthetic"


def record(tokens: int, keep: float, seconds: float | None, gpu: str = "NVIDIA H200", **config: Any) -> dict[str, Any]:
    full = keep == 1
    shown = {
        "target": TARGET, "drafter": None if full else "d.synthetic", "prompt_tokens": tokens, "keep_ratio": keep,
        "scorer": None if full else "tail", "alpha": None, "density": None if full else 0.05, "vram": None, "kv": "f16",
    } | config  # fmt: skip
    metrics = {"ttft_s": seconds, "full_ttft_s": 14.0, "peak_bytes": 20 << 30, "density": shown["density"]}
    return {"bench": "ttft", "config": shown, "metrics": metrics, "samples": [seconds] * 3, "gpu": gpu}


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]


def test_rows_stand_in_order_and_are_against_llama_cpp() -> None:
    found = headline(
        [
            record(131072, 0.05, 1.5, vram="18g"),
            record(131072, 0.05, 1.3, vram="23g"),
            record(131072, 0.05, 1.0, scorer="random", drafter=None, density=None),
            record(131072, 0.05, 9.9),
            record(131072, 1.0, 14.0),
            record(131072, 0.05, 1.25),
            record(131072, 0.2, 3.0),
            record(4096, 0.05, 0.1),
        ]
    )
    table = rows(found)[1:]
    assert [row[1] for row in table] == [
        "llama.cpp, full prefill (measured in another run)",
        "Lucebox PFlash, keep 0.05 (estimate)",
        "`sp`, full prefill",
        *["`sp`, keep 0.05, `tail`, density 0.05"] * 3,
        "`sp`, keep 0.05, control `random`",
    ]
    assert [row[2] for row in table] == ["", "", "none", "none", "23g", "18g", "none"]
    assert [row[3] for row in table] == ["67.5", "7.70", "14.0", "1.25", "1.30", "1.50", "1.00"]
    assert [row[4] for row in table] == ["1.0x", "8.8x", "4.8x", "54.0x", "51.9x", "45.0x", "67.5x"]
    assert [row[5] for row in table] == ["0.2x", "1.8x", "1.0x", "11.2x", "10.8x", "9.3x", "14.0x"]
    assert [row[6] for row in table] == ["", "", *["20.0"] * 5]
    assert "The drafter read 5.0 % of its attention blocks" in found
    assert "keep 0.05 (tail) measured to pay from the shortest length on, 4096 tokens (n = 1)" in found


def test_a_peer_measured_here_goes_before_the_quoted_one() -> None:
    peer = record(32768, 1.0, 20.0, engine="llama.cpp", build="abc")
    table = rows(headline([record(32768, 0.05, 0.5), peer]))[1:]
    assert table[0][1] == "llama.cpp, full prefill (build abc, measured here)"
    assert [row[4] for row in table] == ["1.0x", "40.0x"]
    assert len(table) == 2


@pytest.mark.parametrize(("gpu", "tokens"), [("NVIDIA L40S", 32768), ("NVIDIA H200", 65536)])
def test_what_was_not_measured_is_said_and_not_compared_with(gpu: str, tokens: int) -> None:
    table = rows(headline([record(tokens, 0.05, 0.5, gpu)]))[1:]
    assert table[0][1:5] == ["llama.cpp, full prefill (not measured here)", "", "", ""]
    assert table[1][4] == ""
    assert 65536 not in LLAMA_CPP


def test_machines_stand_apart_and_failures_are_left_out() -> None:
    two = headline([record(32768, 0.05, 0.5), record(32768, 0.05, 1.0, "NVIDIA L40S"), record(65536, 1.0, None)])
    assert two.count("| prompt tokens |") == 2
    assert "65,536" not in two
    assert headline([record(65536, 1.0, None)]) == NOTHING


def test_what_the_server_added_stands_below_the_table_of_its_machine() -> None:
    def load(clients: int, tokens: int, gpu: str = "NVIDIA H200") -> dict[str, Any]:
        metrics = {"prompt_tokens": tokens, "added_ms_median": tokens / 1000, "added_ms_p95": tokens / 500}
        metrics |= {"answered": 40, "different_answers": 1}
        return {"bench": "serve_load", "config": {"clients": clients, "requests": 40, "document_characters": tokens},
                "metrics": metrics, "gpu": gpu}  # fmt: skip

    served = [load(1, 8000), load(1, 600), load(16, 600), load(1, 9000, "NVIDIA L40S")]
    found = headline([record(32768, 0.05, 0.5), *served]).splitlines()[-1]
    assert "adds 0.6 ms at 600 tokens (p95 1.2), 8.0 ms at 8,000 tokens (p95 16.0)." in found
    assert "With 16 clients at once 40 of 40 requests were answered, all alike" in found
    assert "9,000" not in found
    assert headline(served) == NOTHING


def test_the_table_goes_between_the_marks() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert insert_headline(page, NOTHING) == f"before\n{BEGIN}\n{NOTHING}\n{END}\nafter\n"
    assert insert_headline(insert_headline(page, "x"), "y") == insert_headline(page, "y")
    for broken in ("none", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", page + page):
        with pytest.raises(ConfigError, match="once each"):
            insert_headline(broken, "x")
