"""Predicted times: cards as their sheets have them, rows held out from the fit, and what `sp plan` prints of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from plan_calls import PAIR, call

from sp.bench.predicted.fit import fit, fit_rate, told
from sp.bench.predicted.rows import FIT_SHAPES, FIT_TOKENS, TURNS_SINCE, Row, rows
from sp.bench.predicted.samples import Sample
from sp.bench.record import newest
from sp.commands.plan import KEEP
from sp.models.cost import prefill_cost
from sp.models.inspect import cards
from sp.models.inspect.known_cards import KNOWN, find_card
from sp.models.timing.fitted import FILE, fitted
from sp.models.timing.predict import Predictor
from sp.models.timing.tiles import Product, in_tiles
from sp.models.timing.work import Weights, Work, reading, scoring, step

RESULTS = Path(__file__).parents[2] / "results"
RECORDS, PAIRS = RESULTS / "nvidia-h200", RESULTS / "nvidia-h100-80gb-hbm3"
A_CLOCK = {(8, 0): 2048, (8, 6): 512, (9, 0): 4096, (12, 0): 512}
"""Dense bf16 operations of a multiprocessor in a clock, sums in float32."""


@cache
def known_rows() -> tuple[Row, ...]:
    return tuple(rows(RECORDS))


@pytest.mark.parametrize("card", KNOWN, ids=lambda card: card.name)
def test_a_card_does_what_its_multiprocessors_do(card: Any) -> None:
    a_clock = A_CLOCK.get(card.capability, 1024 if card.name == "l40s" else 512)
    assert card.flops == pytest.approx(card.multiprocessors * card.boost * a_clock, rel=0.02)
    assert card.int8 == pytest.approx(card.flops * (4 if card.name.startswith("rtx") else 2), rel=0.02)


def test_only_hopper_has_kernels_of_its_own() -> None:
    assert [card.name for card in KNOWN if card.path == "sm_90a"] == ["h100", "h200"]


def test_fitted_rows_are_those_of_the_split_and_no_others() -> None:
    """Names of rows tell model and length, so that a row of another one cannot be fitted to unseen."""
    for row in known_rows():
        if row.fit and "int8" not in row.name:
            assert any(shape in row.name for shape in FIT_SHAPES), row.name
            assert row.key[1] in (*FIT_TOKENS, 0), row.name
            assert "portable" not in row.name
            assert "ud-" not in row.name
    assert sum(not row.fit for row in known_rows()) > 5 * sum(row.fit for row in known_rows())


def test_rows_of_several_cards_that_waited_for_the_host_are_left_out(tmp_path: Path) -> None:
    alone = next(r for r in newest(RECORDS / "prefill.jsonl") if next(rows_of(r, tmp_path), None) is not None)
    several = {**alone, "config": {**alone["config"], "cards": 2}}
    assert list(rows_of(several, tmp_path))
    assert not list(rows_of({**several, "date": TURNS_SINCE[:10]}, tmp_path))


def test_a_row_is_predicted_for_the_host_that_it_was_measured_on(tmp_path: Path) -> None:
    record = next(r for r in newest(RECORDS / "drafter.jsonl") if r["config"]["prompt_tokens"] == 2048)
    told = fitted().host.launch_us
    times = []
    for launch_us in (None, told, 2 * told):
        metrics = {**record["metrics"], "launch_us": launch_us}
        (row,) = rows_of({**record, "metrics": metrics}, tmp_path)
        times.append(row.predict(fitted()))
    assert times[0] == times[1]
    assert times[2] == pytest.approx(2 * times[1])  # the card waits for all of so short a scoring


def rows_of(record: Any, folder: Path) -> Any:
    for bench in ("prefill", "decode", "drafter", "ttft"):
        (folder / f"{bench}.jsonl").write_text("")
    (folder / f"{record['bench']}.jsonl").write_text(json.dumps(record) + "\n")
    return rows(folder)


def test_the_table_is_what_the_records_say() -> None:
    assert json.loads(FILE.read_text()) == told(fit(RECORDS, PAIRS)), "run: python experiments/fit_times.py --write"


@pytest.mark.parametrize("bench", ["prefill", "decode", "drafter", "ttft"])
def test_rows_held_out_are_predicted_within_a_tenth_in_the_median(bench: str) -> None:
    errors = {row.name: row.error(fitted()) for row in known_rows() if row.bench == bench and not row.fit}
    for name, error in errors.items():
        print(f"{error:+7.1%} {name}")
    assert median(map(abs, errors.values())) < 0.1


def test_long_rows_held_out_of_one_card_are_within_a_tenth() -> None:
    long = [row for row in known_rows() if not row.fit and row.seconds >= 0.3 and row.cards == 1]
    assert len(long) > 20
    assert {row.name: row.error(fitted()) for row in long if abs(row.error(fitted())) > 0.1} == {}


def test_scorings_and_requests_of_several_cards_are_within_a_tenth_but_for_two() -> None:
    """First tokens of four cards at low density, whose host the model thinks faster than it is."""
    several = [row for row in known_rows() if row.cards > 1]
    assert {row.cards for row in several} == {2, 4}
    read = [row for row in several if "keep" in row.name or row.bench == "drafter"]
    assert len(read) >= 10
    beyond = [row for row in read if abs(row.error(fitted())) > 0.1]
    assert [(row.bench, row.cards) for row in beyond] == [("ttft", 4)] * 2
    assert all(abs(row.error(fitted())) < 0.14 for row in beyond)


def test_what_cards_took_before_their_processor_was_chosen_is_shown_apart() -> None:
    older = list(rows(RECORDS, before=True))
    assert older
    assert all(row.cards > 1 and not row.fit for row in older)
    assert not {row.name for row in older} & {row.name for row in known_rows()}


def test_portable_rows_are_predicted_from_kernels_alone() -> None:
    portable = [row for row in known_rows() if row.name.endswith("portable") and "int8" not in row.name]
    assert len(portable) >= 2
    assert all(abs(row.error(fitted())) < 0.1 and not row.fit for row in portable)


def test_a_rate_is_found_again() -> None:
    card = find_card("h200")
    samples = [
        Sample(Work("matmul", flops, 0.0, 1), "sm_90a", flops / card.flops / 0.5 + 1e-5) for flops in (1e9, 1e10, 1e12)
    ]
    rate = fit_rate(samples, "sm_90a")
    assert (rate.share, rate.launch_s) == (pytest.approx(0.5), pytest.approx(1e-5))


def test_work_is_that_of_the_cost_model() -> None:
    """All but the last layer, of which a prefill computes one row."""
    model = Weights.of_shape("llama-3.1-8b", "q4_k_m")
    work = {one.kind: one for one in reading(model, 4096)}
    cost, share = prefill_cost(model.config, 4096), 31 / 32
    assert work["matmul"].flops == pytest.approx(cost.weights * share)
    assert work["attention"].flops == pytest.approx(cost.attention * share)
    dense = {one.kind: one for one in scoring(model, 4096)}
    sparse = {one.kind: one for one in scoring(model, 4096, 0.25)}
    assert sparse["sparse"].flops == pytest.approx(dense["attention"].flops / 4)
    assert step(model, 8192, "f16")[0].nbytes == model.nbytes


@pytest.mark.parametrize("in_bytes", [False, True])
def test_tiles_hold_at_least_what_a_product_asks_for(in_bytes: bool) -> None:
    """Nearly as much where it is large; the last tokens and rows of a product may fill a tile in part."""
    for large in (Product(8192, 17408, 5120, True), Product(16384, 5120, 17408), Product(8192, 12288, 5120)):
        asked = 2 * large.tokens * large.rows * large.width * (1 + large.gated)
        assert 0.99 * asked < in_tiles(large, 132, in_bytes) < 1.15 * asked
    for tokens in (1, 100, 512, 3328):
        for out in (48, 1024, 4352):
            assert in_tiles(Product(tokens, out, 5120), 132, in_bytes) > 2 * tokens * out * 5120


def test_products_are_those_of_the_operations() -> None:
    """Of every chunk, gate and up of a feed-forward together."""
    model = Weights.of_shape("qwen3.6-27b", "q4_k_m")
    for tokens in (512, 8192, 20000):
        work = next(one for one in reading(model, tokens) if one.kind == "matmul")
        made = sum(2 * one.tokens * one.rows * one.width * (1 + one.gated) * count for one, count in work.products)
        assert made == work.flops


def test_a_better_card_is_never_slower() -> None:
    model, drafter = Weights.of_shape("qwen3.6-27b", "q4_k_m"), Weights.of_shape("qwen3-0.6b", "bf16")
    found = [Predictor.of(find_card(name), fitted()) for name in ("rtx3090", "rtx4090", "rtx5090", "h200")]
    for times in (
        [one.full_s(model, 8192) for one in found],
        [one.compressed(model, drafter, 131072, 0.05, 0.05).ttft_s for one in found],
        [one.step_s(model, 8192) for one in found],
    ):
        assert times == sorted(times, reverse=True)


def test_the_usual_keep_ratio_is_the_one_that_memory_is_reckoned_with() -> None:
    assert KEEP == cards.KEEP


def test_plan_says_predicted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*PAIR, "--card", "rtx3090", "-p", "8k,128k", "--keep-ratio", "0.05", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    head = next(line for line in out.splitlines() if line.count("predicted") > 1)
    assert head.count("predicted") == 5
    assert "rtx3090" in out
    assert call(*PAIR, "--card", "rtx3090", "-p", "8k,128k", "--json", monkeypatch=monkeypatch) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["predicted"]["kernels"] == "portable"
    assert [row["tokens"] for row in found["predicted"]["times"]] == [8192, 131072]
    assert all(row["ttft_s"] < row["full_s"] for row in found["predicted"]["times"])
    assert [row["tokens"] for row in found["memory"]][:2] == [8192, 131072]


def test_more_kept_takes_longer_and_more_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    for keep in ("0.05", "0.5"):
        call(*PAIR, "--card", "rtx5090", "--keep-ratio", keep, "--json", monkeypatch=monkeypatch)
        found = json.loads(capsys.readouterr().out)
        seen.append((found["predicted"]["times"][-1]["prefill_s"], found["memory"][2]["together"]))
    assert all(less < more for less, more in zip(*seen, strict=True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*PAIR, "--card", "rtx3099"], "rtx3090"),
        ([*PAIR, "--keep-ratio", "0"], "--keep-ratio"),
        ([*PAIR, "-p", "1k,2k,3k,4k,5k,6k,7k"], "up to 6 lengths"),
        (["plan", "--card", "rtx3090"], "give one model"),
        (["plan", "--synthetic-target", "qwen9"], "unknown shape"),
    ],
)
def test_wrong_options_are_a_line(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*options, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_help_has_an_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "--help", monkeypatch=monkeypatch) == 0
    assert "--card rtx3090" in " ".join(capsys.readouterr().out.split())
