"""The measured break-even is the crossing of known times, found among records of one pair and machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sp.cli import main
from sp.errors import ConfigError
from sp.kernels.machine import cpu_facts, machine_slug
from sp.prompt import Prompt
from sp.scoring import SCORERS
from sp.session import Pipeline, RunOptions
from sp.session.measured import find_break_even, measured_break_evens, read_break_evens

HOW = {"scorer": "tail", "attention": "dense", "alpha": None, "density": None, "blocks": None}


def record(tokens: int, ttft: float, full: float | None, keep: float = 0.1, **config: Any) -> dict[str, Any]:
    shown = {"target": "t", "drafter": "d", "vram": None, "prompt_tokens": tokens, "keep_ratio": keep, **HOW, **config}
    metrics = {"ttft_s": ttft, "full_ttft_s": full, "full_runs": 3}
    return {"bench": "ttft", "config": shown, "metrics": metrics, "samples": [ttft] * 5, "gpu": "NVIDIA H200"}


def power_law(crossing: float, keep: float = 0.1) -> list[dict[str, Any]]:
    """Full prefill linear in the length, compressed with the square root of it: equal at `crossing`."""
    return [record(n, (n * crossing) ** 0.5, n, keep) for n in (1024, 4096, 16384)]


def test_the_crossing_of_power_laws_is_exact() -> None:
    (found,) = measured_break_evens(power_law(3000))
    assert (found.tokens, found.below, found.above) == (3000, 1024, 4096)
    assert (found.shortest, found.longest, found.samples) == (1024, 16384, 3)


def test_paying_everywhere_and_nowhere_is_said() -> None:
    always, never = measured_break_evens([*power_law(500, 0.1), *power_law(99999, 0.2)])
    assert (always.tokens, always.below) == (1024, None)
    assert "from the shortest length on, 1024 tokens (n = 3)" in always.describe()
    assert (never.tokens, never.below, never.above) == (None, 16384, None)
    assert "not to pay at any length from 1024 to 16384" in never.describe()


def test_a_dip_counts_the_newest_record_too_and_rows_without_a_full_prefill_do_not() -> None:
    rows = [record(1024, 1, 2), record(2048, 3, 2), record(4096, 1, 2), record(8192, 9, None), record(1024, 9, 9, 1.0)]
    (found,) = measured_break_evens(rows)
    assert (found.below, found.above, found.longest) == (2048, 4096, 4096)
    (mended,) = measured_break_evens([*rows, record(2048, 1, 2)])
    assert mended.tokens == 1024


def test_budgets_stand_apart() -> None:
    rows = [r | {"config": r["config"] | {"vram": "18g"}} for r in power_law(9000)] + power_law(3000)
    assert {(even.vram, even.tokens) for even in measured_break_evens(rows)} == {("18g", 9000), (None, 3000)}


def test_arithmetics_stand_apart(tmp_path: Path) -> None:
    told = {"math": "int8", "drafter_math": "bf16"}, {"math": "f32"}, {"math": "int8"}
    rows = [
        r | {"config": r["config"] | one}
        for one, length in zip(told, (9000, 3000, 6000), strict=True)
        for r in power_law(length)
    ]
    found = {even.precisions: even.tokens for even in measured_break_evens(rows)}
    assert found == {("int8", "bf16"): 9000, ("bf16", "bf16"): 3000, ("int8", "int8"): 6000}
    path = tmp_path / "ttft.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = (
        read_break_evens(path, "t", "d", "nvidia-h200", None),
        read_break_evens(path, "t", "d", "nvidia-h200", None, ("int8", "int8")),
    )
    assert [[even.tokens for even in each] for each in asked] == [[3000], [6000]]


def test_only_this_pair_machine_and_budget_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ttft.jsonl"
    others = [record(1024, 1, 9, target="u"), record(1024, 1, 9, vram="18g"), record(1024, 1, 9) | {"gpu": "Other"}]
    file.write_text("".join(json.dumps(r) + "\n" for r in [*power_law(3000), *others]))
    found = read_break_evens(file, "t", "d", "nvidia-h200", None)
    assert [b.tokens for b in found] == [3000]
    assert find_break_even(found, 0.1, SCORERS.build("tail")) is found[0]
    assert find_break_even(found, 0.2, SCORERS.build("tail")) is None
    assert find_break_even(found, 0.1, SCORERS.build("lookahead")) is None
    assert find_break_even(found, 0.1, SCORERS.build("tail", {"attention": "flashprefill"})) is None
    with pytest.raises(ConfigError, match="cannot read"):
        read_break_evens(tmp_path / "no.jsonl", "t", "d", "nvidia-h200", None)


def test_a_pair_decides_by_what_was_measured_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pipeline.open(device="cpu")
    names = {"target": pair.target.path.name, "drafter": pair.drafter.path.name}  # type: ignore[union-attr]
    prompt = Prompt.from_document("The grass is green. " * 60, "What is green?", pair.target.template)
    options = RunOptions(keep_ratio=0.5, max_new_tokens=1)

    def records(crossing: float, place: Path, **config: Any) -> Path:
        place.parent.mkdir(parents=True, exist_ok=True)
        rows = [r | cpu_facts() for r in power_law(crossing, 0.5)]
        rows = [r | {"config": r["config"] | names | config} for r in rows]
        place.write_text("".join(json.dumps(r) + "\n" for r in rows))
        return place

    late = pair.with_break_evens(records(3000, tmp_path / "late.jsonl"))
    decision = late.run(prompt, options, full=False).decision
    assert not decision.activated
    fixed = int(pair.tokenise(prompt).mask("protected").sum())
    assert f"below the measured break-even of {3000 + fixed}" in decision.reason
    monkeypatch.chdir(tmp_path)
    assert pair.with_break_evens() is pair
    records(3000, Path("results") / machine_slug(cpu_facts()) / "ttft.jsonl")
    assert pair.with_break_evens().break_evens == late.break_evens
    other = records(3000, tmp_path / "other.jsonl", target="other.gguf")
    monkeypatch.setattr("sys.argv", ["sp", "run", "--device", "cpu", "--break-even", str(other)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "sp bench ttft --record" in said
    assert said.count("\n") == 1


def test_numbers_of_gpus_stand_apart(tmp_path: Path) -> None:
    path, on = tmp_path / "ttft.jsonl", {"cards": 2, "target_cards": 2}
    rows = power_law(9000) + [r | {"config": r["config"] | on} for r in power_law(3000)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = path, "t", "d", "nvidia-h200", None, ("bf16", "bf16")
    assert {(even.gpus, even.tokens) for even in measured_break_evens(rows)} == {((1, 1), 9000), ((2, 2), 3000)}
    assert [read_break_evens(*how, gpus)[0].tokens for gpus in ((1, 1), (2, 2))] == [9000, 3000]
    assert read_break_evens(*how, (2, 1)) == ()
