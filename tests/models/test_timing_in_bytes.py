"""Predicted times in eight bits: work that is counted by hand, rows and what is fitted to, and `sp plan --math`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_calls import PAIR, call

from sp.bench.predicted.rows import EIGHT_TOKENS, FIT_SHAPES, LEFT_SINCE, Row, rows
from sp.bench.predicted.samples import kernel_samples
from sp.bench.record import newest
from sp.models.inspect.cards import need
from sp.models.inspect.known_cards import KNOWN, find_card
from sp.models.timing.fitted import bound, fitted
from sp.models.timing.predict import Predictor
from sp.models.timing.rounded import Rounded
from sp.models.timing.work import Weights, Work, reading, scoring
from sp.quant import Math
from sp.session.load import embedded

RECORDS = Path(__file__).parents[2] / "results" / "nvidia-h200"
BENCHES = ("prefill", "decode", "drafter", "ttft")
TARGET, DRAFTER = Weights.of_shape("qwen3.6-27b", "q4_k_m"), Weights.of_shape("qwen3-0.6b", "bf16")
INT8 = replace(TARGET, rounded=Rounded(products=True))
FEED_FORWARD = 3 * 5120 * 17408
ATTENTION = 5120 * (2 * 24 * 256 + 2 * 4 * 256) + 24 * 256 * 5120
"""Queries with their gates, keys, values, outputs."""
DELTA = 5120 * (16 * 128 * 2 + 48 * 128) + 5120 * 48 * 128 + 48 * 128 * 5120
"""Queries, keys and values; gates; outputs. Not those of 48 rows, which are too narrow."""


def kinds(work: list[Work]) -> dict[str, Work]:
    return {one.kind: one for one in work}


def test_products_in_int8_are_those_of_wide_matrices_past_the_first_two_layers() -> None:
    """64 layers, every fourth with attention; the last is left out, the first two are in BF16."""
    plain, rounded = kinds(reading(TARGET, 8192)), kinds(reading(INT8, 8192))
    assert rounded["matmul int8"].flops == 2 * 8192 * (61 * FEED_FORWARD + 15 * ATTENTION + 46 * DELTA)
    left = 2 * (FEED_FORWARD + DELTA) + 48 * 2 * 5120 * 48
    assert rounded["matmul"].flops == 2 * 8192 * left
    both = rounded["matmul"], rounded["matmul int8"]
    assert sum(one.flops for one in both) == plain["matmul"].flops
    assert sum(one.nbytes for one in both) == pytest.approx(plain["matmul"].nbytes)
    assert both[0].launches + both[1].launches / 2 == plain["matmul"].launches  # one more for what surrounds them
    assert {name: rounded[name] for name in plain if name != "matmul"} == {
        k: v for k, v in plain.items() if k != "matmul"
    }


def test_all_layers_can_be_asked_for() -> None:
    whole = kinds(reading(replace(TARGET, rounded=Rounded(products=True, left=0)), 8192))
    assert whole["matmul int8"].flops == 2 * 8192 * (63 * FEED_FORWARD + 15 * ATTENTION + 48 * DELTA)


@pytest.mark.parametrize(("tokens", "in_int8"), [(511, 0), (512, 512), (16384 + 511, 16384), (16384 + 512, 16896)])
def test_short_runs_are_in_bf16_and_chunks_are_twice_as_long(tokens: int, in_int8: int) -> None:
    a_token = 2 * (61 * FEED_FORWARD + 15 * ATTENTION + 46 * DELTA)
    found = kinds(reading(INT8, tokens))
    assert found.get("matmul int8", Work("matmul int8", 0.0, 0.0, 0)).flops == in_int8 * a_token
    assert found["attention"].launches == 15 * (1 + (tokens > 16384))


@pytest.mark.parametrize("density", [None, 0.25])
def test_attention_in_int8_is_that_of_the_drafter_with_its_keys_rounded(density: float | None) -> None:
    """28 layers, of which the last attends for the last tokens only."""
    tokens, in_bytes = 4096, replace(DRAFTER, rounded=Rounded(attention=True))
    plain, found = kinds(scoring(DRAFTER, tokens, density)), kinds(scoring(in_bytes, tokens, density))
    pairs = 27 * 16 * (density or 1) * tokens * (tokens + 1) / 2
    assert found["attention int8"] == Work("attention int8", 4 * 128 * pairs, 0.0, 27)
    assert found["rounding"].nbytes == 27 * tokens * 2 * 8 * 128 * 4
    gone = "attention" if density is None else "sparse"
    assert {k: v for k, v in plain.items() if k != gone} == {
        k: v for k, v in found.items() if k not in ("attention int8", "rounding")
    }
    assert scoring(in_bytes, 2048, density) == scoring(DRAFTER, 2048, density)


def test_a_last_chunk_that_is_short_attends_in_bf16() -> None:
    model = Weights.of_shape("llama-3.1-8b", "q4_k_m")
    found = kinds(reading(replace(model, rounded=Rounded(True, True)), 16384 + 2000))
    plain = kinds(reading(model, 16384 + 2000))
    long = 31 * 32 * 16384 * 16385 / 2
    assert found["attention int8"].exponentials == 0  # its weights are bits of their exponents
    assert found["attention"].exponentials == pytest.approx(plain["attention"].exponentials - long)


@pytest.mark.parametrize(
    ("asked", "shape", "card", "products", "attention"),
    [
        ("bf16", "qwen3-0.6b", "h200", False, False),
        ("auto", "qwen3-0.6b", "h200", True, True),
        ("auto", "qwen3-0.6b", "rtx3090", False, False),
        ("auto", "qwen2.5-0.5b", "rtx4090", True, False),  # whose feed-forward is 4,864 wide; heads of 64
        ("auto", "qwen2.5-0.5b", "rtx5090", False, False),
        ("int8", "qwen3.6-27b", "rtx5090", True, False),
        ("int8", "qwen3.6-27b", "h200", True, False),  # heads of 256
        ("int8", "llama-3.1-70b", "h200", True, True),
    ],
)
def test_what_is_asked_comes_to(asked: Any, shape: str, card: str, products: bool, attention: bool) -> None:
    model, where = Weights.of_shape(shape, "bf16" if asked == "auto" else "q4_k_m"), find_card(card)
    found = Rounded.of(asked if asked == "auto" else Math(asked), model.config, where, where.path)
    work = kinds(scoring(replace(model, rounded=found), 8192))
    assert ("matmul int8" in work, "attention int8" in work) == (products, attention)


def test_products_in_bytes_are_bound_by_the_rate_for_int8() -> None:
    card = find_card("rtx4090")
    assert bound(Work("matmul int8", 660.6e12, 0.0, 1), card, "portable") == 1
    assert bound(Work("matmul", 165.2e12, 0.0, 1), card, "portable") == 1


def eight_rows() -> list[Row]:
    return [row for row in rows(RECORDS) if "int8" in row.name]


def test_one_row_for_each_path_is_fitted_to_and_the_others_are_within_a_tenth() -> None:
    fit = [row for row in eight_rows() if row.fit]
    assert sorted(row.key for row in fit) == [("prefill int8", "portable"), ("prefill int8", "sm_90a")]
    for row in fit:
        assert f"{FIT_SHAPES[0]} q4_k_m" in row.name
        assert f"{EIGHT_TOKENS:,} tokens" in row.name
        assert abs(row.error(fitted())) < 0.001  # rates are told to four digits
    long = [row for row in eight_rows() if not row.fit and row.cards == 1 and row.seconds >= 0.3]
    assert len(long) >= 10
    assert {row.name: row.error(fitted()) for row in long if abs(row.error(fitted())) > 0.1} == {}


def test_older_records_of_all_layers_are_rows_of_the_portable_path_alone(tmp_path: Path) -> None:
    for bench in BENCHES:
        (tmp_path / f"{bench}.jsonl").write_text("")
    record = next(
        r for r in newest(RECORDS / "prefill.jsonl") if r["config"]["math"] == "int8" and r["date"] >= LEFT_SINCE
    )
    for path, date, name in (
        ("sm_90a", LEFT_SINCE, "in int8, 8,192"),
        ("sm_90a", "2026-11-23T19:08:10+00:00", None),
        ("portable", LEFT_SINCE, "in int8, 8,192"),
        ("portable", "2026-11-23T19:08:10+00:00", "in int8, all layers, 8,192"),
    ):
        one = {**record, "date": date, "config": {**record["config"], "path": path}}
        (tmp_path / "prefill.jsonl").write_text(json.dumps(one) + "\n")
        found = [row.name for row in rows(tmp_path)]
        assert len(found) == (name is not None)
        assert all(name in each for each in found if name)


@pytest.mark.parametrize("changes", [{"math": "fp8"}, {"asked_math": "auto"}])
def test_other_arithmetics_are_no_rows(changes: dict[str, str], tmp_path: Path) -> None:
    for bench in BENCHES:
        (tmp_path / f"{bench}.jsonl").write_text("")
    record = next(r for r in newest(RECORDS / "prefill.jsonl") if r["config"]["math"] == "int8")
    one = {**record, "date": LEFT_SINCE, "config": {**record["config"], **changes}}
    (tmp_path / "prefill.jsonl").write_text(json.dumps(one) + "\n")
    assert not list(rows(tmp_path))


def test_drafters_with_products_in_int8_are_no_rows(tmp_path: Path) -> None:
    for bench in BENCHES:
        (tmp_path / f"{bench}.jsonl").write_text("")
    record = next(r for r in newest(RECORDS / "drafter.jsonl") if r["config"].get("products") == "bf16")
    for config, count in ((record["config"], 1), ({**record["config"], "products": None}, 0)):
        kept = {name: value for name, value in config.items() if value is not None or name != "products"}
        (tmp_path / "drafter.jsonl").write_text(json.dumps({**record, "config": kept}) + "\n")
        assert len(list(rows(tmp_path))) == count


def test_samples_of_attention_in_bytes_take_the_work_that_a_layer_is_counted_to_have() -> None:
    """Rounding of a layer's keys and values: 8,192 and 131,072 tokens, 8 heads of 128."""
    found = [one for one in kernel_samples(RECORDS) if one.work.kind in ("rounding", "attention int8")]
    rounded = sorted(one.work.nbytes for one in found if one.work.kind == "rounding")
    assert rounded == [pytest.approx(tokens * 2 * 8 * 128 * 4) for tokens in (8192, 131072)]
    assert {(one.path, one.work.launches) for one in found} == {("sm_90a", 1)}
    assert len(found) == 2 + 2 * 2


@pytest.mark.parametrize("card", KNOWN, ids=lambda card: card.name)
def test_int8_is_faster_on_every_card(card: Any) -> None:
    predictor = Predictor.of(card, fitted())
    assert predictor.prefill_s(INT8, 8192) < predictor.prefill_s(TARGET, 8192)
    assert predictor.prefill_s(INT8, 511) == predictor.prefill_s(TARGET, 511)


def test_rounded_operands_take_room() -> None:
    args = TARGET.config, TARGET.nbytes, None, 8192, "f16"
    assert need(*args, math=Math.INT8).together > need(*args).together + (200 << 20)


PLAN = [*PAIR, "--card", "h200"]


def test_plan_predicts_in_the_arithmetic_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for maths in (("bf16", "bf16"), ("int8", "bf16"), ("bf16", "auto"), ("int8", "auto")):
        options = ["--math", maths[0], "--drafter-math", maths[1], "--json"]
        assert call(*PLAN, *options, monkeypatch=monkeypatch) == 0
        told = json.loads(capsys.readouterr().out)["predicted"]
        assert (told["math"], told["drafter_math"]) == maths
        found[maths] = told["times"][-1]
    call(*PLAN, "--json", monkeypatch=monkeypatch)
    assert json.loads(capsys.readouterr().out)["predicted"]["times"][-1] == found["bf16", "bf16"]
    for drafter in ("bf16", "auto"):
        plain, rounded = found["bf16", drafter], found["int8", drafter]
        assert rounded["score_s"] == plain["score_s"]
        assert rounded["decode_tok_s"] == plain["decode_tok_s"]
        assert all(rounded[name] < plain[name] for name in ("full_s", "prefill_s", "ttft_s"))
    for target in ("bf16", "int8"):
        assert found[target, "auto"]["score_s"] < found[target, "bf16"]["score_s"]
        assert found[target, "auto"]["full_s"] == found[target, "bf16"]["full_s"]


def test_the_table_says_predicted_and_in_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*PLAN, "--math", "int8", "--drafter-math", "auto", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "predicted with --math int8 and --drafter-math auto" in out
    assert next(line for line in out.splitlines() if line.count("predicted") > 1).count("predicted") == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--math", "fp8"], "--math fp8: no times of it are predicted; sp plan takes bf16 or int8"),
        (["--math", "auto"], "--math auto: no times of it are predicted; sp plan takes bf16 or int8"),
        (["--drafter-math", "int8"], "--drafter-math int8: no times of it are predicted; sp plan takes bf16 or auto"),
        (["--math", "int4"], "did you mean 'int8'?"),
        (["--drafter-math", "x"], "--drafter-math is 'x'"),
    ],
)
def test_other_arithmetics_are_refused_in_a_line(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*PLAN, *options, monkeypatch=monkeypatch) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_the_command_to_copy_asks_for_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = []
    for options in ([], ["--math", "int8", "--drafter-math", "auto"]):
        plan = ["plan", str(embedded("target")), "--card", "h200", "-p", "8k", "--json", *options]
        assert call(*plan, monkeypatch=monkeypatch) == 0
        commands.append(json.loads(capsys.readouterr().out)["command"])
    assert "math" not in commands[0]
    assert commands[1] == f"{commands[0]} --math int8 --drafter-math auto"
