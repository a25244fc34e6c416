"""The headline table: which rows it has, what they are against, and where it is put."""

from __future__ import annotations

from typing import Any

import pytest

from sp.errors import ConfigError
from sp.studies.tables.headline import NOTHING, first_result, headline
from sp.studies.tables.page import PARTS, fill, insert_between

TARGET = "qwen3.6-27b-q4_k_m.synthetic"


def record(tokens: int, keep: float, seconds: float | None, gpu: str = "NVIDIA H200", **config: Any) -> dict[str, Any]:
    full = keep == 1
    shown = {
        "target": TARGET, "drafter": None if full else "d.synthetic", "prompt_tokens": tokens, "keep_ratio": keep,
        "scorer": None if full else "tail", "alpha": None, "density": None if full else 0.05, "vram": None, "kv": "f16",
    } | config  # fmt: skip
    metrics = {"ttft_s": seconds, "full_ttft_s": 14.0, "peak_bytes": 20 << 30, "density": shown["density"]}
    metrics |= {} if full or seconds is None else {"first_ttft_s": 2 * seconds}
    return {"bench": "ttft", "config": shown, "metrics": metrics, "samples": [seconds] * 3, "gpu": gpu}


def peer(
    tokens: int, seconds: float, ubatch: int | None = 2048, shape: str = "qwen3.6-27b", **more: Any
) -> dict[str, Any]:
    config = {"model": "m.gguf", "shape": shape, "type": "q4_k_m", "engine": "llama.cpp", "build": "abc"}
    config |= {"prompt_tokens": tokens, "batch": ubatch and 8192, "ubatch": ubatch}
    return {"bench": "prefill", "config": config, "metrics": {"tok_s": tokens / seconds}, "gpu": "NVIDIA H200"} | more


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]


def test_rows_in_eight_bits_say_so_and_are_against_their_own_full_prefill() -> None:
    full = record(131072, 1.0, 10.0, math="int8")
    full["metrics"]["full_ttft_s"] = 10.0
    both, one = (record(131072, 0.05, 1.0, math="int8", **more) for more in ({}, {"drafter_math": "bf16"}))
    for each in (both, one):
        each["metrics"]["full_ttft_s"] = 10.0
    given = [full, both, one, record(131072, 1.0, 14.0, math="bf16"), record(131072, 0.05, 1.25, math="bf16")]
    for table in (headline(given), first_result(given)):
        found = {row[0] if table.startswith("| 131,072") else row[1]: row for row in rows(table)[1:]}
        assert list(found) == [
            *("`sp`, full prefill", "`sp`, full prefill, int8", "`sp`, keep 0.05, `tail`, density 0.05"),
            "`sp`, keep 0.05, `tail`, density 0.05, int8 and bf16",
            "`sp`, keep 0.05, `tail`, density 0.05, int8",
        ]
        gains = [cell for row in found.values() for cell in row if cell.endswith("x") and cell != "x"]
        assert gains == ["1.0x", "1.0x", "11.2x", "10.0x", "10.0x"]


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
            record(131072, 0.05, 1.6, density=0.24),
            record(4096, 0.05, 0.1),
            peer(131072, 67.5),
        ]
    )
    table = rows(found)[1:]
    assert [row[1] for row in table] == [
        "llama.cpp, full prefill (build abc, `-b 8192 -ub 2048`)",
        "`sp`, full prefill",
        *["`sp`, keep 0.05, `tail`, density 0.05"] * 3,
        "`sp`, keep 0.05, `tail`, density 0.24",
        "`sp`, keep 0.05, control `random`",
    ]
    assert [row[2] for row in table] == ["", "none", "none", "23g", "18g", "none", "none"]
    assert [row[3] for row in table] == ["67.5", "14.0", "1.25", "1.30", "1.50", "1.60", "1.00"]
    assert [row[4] for row in table] == ["", "", "2.50", "2.60", "3.00", "3.20", "2.00"]
    assert [row[5] for row in table] == ["1.0x", "4.8x", "54.0x", "51.9x", "45.0x", "42.2x", "67.5x"]
    assert [row[6] for row in table] == ["0.2x", "1.0x", "11.2x", "10.8x", "9.3x", "8.8x", "14.0x"]
    assert [row[7] for row in table] == ["", *["20.0"] * 6]
    assert "The drafter read 5.0 % of its attention blocks at density 0.05; 24.0 % at" in found
    assert "keep 0.05 (tail) measured to pay from the shortest length on, 4096 tokens (n = 1)" in found
    assert found.count("keep 0.05 (tail)") == 1


def test_the_peer_is_llama_cpp_at_its_best_setting_and_of_the_same_model() -> None:
    slow, other = peer(32768, 25.0, None), peer(32768, 1.0, shape="qwen3-0.6b")
    elsewhere = peer(32768, 2.0, gpu="NVIDIA L40S")
    table = rows(headline([record(32768, 0.05, 0.5), slow, peer(32768, 20.0), other, elsewhere]))[1:]
    assert table[0][1] == "llama.cpp, full prefill (build abc, `-b 8192 -ub 2048`)"
    assert [row[5] for row in table] == ["1.0x", "40.0x"]
    assert rows(headline([record(32768, 0.05, 0.5), slow]))[1][1] == "llama.cpp, full prefill (build abc)"


@pytest.mark.parametrize(("gpu", "tokens"), [("NVIDIA L40S", 32768), ("NVIDIA H200", 65536)])
def test_what_was_not_measured_has_no_row_and_is_not_compared_with(gpu: str, tokens: int) -> None:
    (row,) = rows(headline([record(tokens, 0.05, 0.5, gpu), peer(32768, 20.0)]))[1:]
    assert row[1].startswith("`sp`")
    assert row[5] == ""


def test_one_process_is_claimed_only_where_the_records_tell() -> None:
    def told(*processes: str | None) -> str:
        made = [record(32768, 0.05, 0.5, vram=f"{20 + i}g") for i in range(len(processes))]
        for one, process in zip(made, processes, strict=True):
            one["metrics"] |= {} if process is None else {"process": process}
        return headline(made)

    assert ", in one process." in told("a", "a")
    assert ", in 2 processes." in told("a", "b")
    assert "process" not in told("a", None)


def test_the_first_request_of_a_process_is_told_with_what_it_compiled() -> None:
    cold = record(32768, 0.05, 0.5)
    cold["metrics"] |= {"cold_ttft_s": 5.25, "cold_compiled": 23}
    assert "The first request of a process, with 23 kernels to compile, took 5.25 s." in headline([cold])


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
    first, last = next((part.begin, part.end) for part in PARTS if part.make is headline)
    page = f"before\n{first}\nold\n{last}\nafter\n"
    assert fill(page, []) == f"before\n{first}\n{NOTHING}\n{last}\nafter\n"
    assert insert_between(insert_between(page, first, last, "x"), first, last, "y") == insert_between(
        page, first, last, "y"
    )
    for broken in (f"{first}\n", f"{last}\n{first}\n", page + page):
        with pytest.raises(ConfigError, match="once each"):
            fill(broken, [])
    with pytest.raises(ConfigError, match="no marks"):
        fill("none", [])
