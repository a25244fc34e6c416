"""Predicted times of several cards: work counted by hand, rows of two H100, and `sp plan --cards`."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
from plan_calls import PAIR, call

from sp.bench.predicted.links import ALONE, PAIRED, fit_links, marked
from sp.bench.predicted.rows import Row
from sp.errors import ConfigError
from sp.models.cost import prefill_cost
from sp.models.inspect.known_cards import find_card
from sp.models.timing.fitted import bound, busy, fitted
from sp.models.timing.predict import Predictor
from sp.models.timing.rounded import Rounded
from sp.models.timing.several import (
    NODE_S,
    begun,
    gathered,
    graphs_begun,
    halved,
    share_of,
    striped,
    sum_time,
    summed,
    sums,
    uneven,
)
from sp.models.timing.work import Weights, Work, reading, scoring, step

RESULTS = Path(__file__).parents[2] / "results"
RECORDS, PAIRS = RESULTS / "nvidia-h200", RESULTS / "nvidia-h100-80gb-hbm3"
TARGET, DRAFTER = Weights.of_shape("qwen3.6-27b", "q4_k_m"), Weights.of_shape("qwen3-0.6b", "bf16")


def kinds(work: list[Work]) -> dict[str, Work]:
    return {one.kind: one for one in work}


@pytest.fixture(scope="module")
def pairs() -> list[Row]:
    return marked(PAIRS, PAIRED)


@pytest.fixture(scope="module")
def ours() -> list[Row]:
    return marked(RECORDS)


@pytest.mark.parametrize("cards", [2, 4])
def test_cards_that_share_a_target_do_all_of_its_products_and_attention_once(cards: int) -> None:
    """Products with the 48 rows of decays and the like are by value heads, so that nothing is done twice."""
    whole, mine = kinds(reading(TARGET, 8192)), kinds(reading(share_of(TARGET, cards), 8192))
    for kind in ("matmul", "attention", "delta"):
        assert mine[kind].flops * cards == pytest.approx(whole[kind].flops), kind
    cost = prefill_cost(TARGET.config, 8192)
    assert mine["attention"].flops * cards == pytest.approx(cost.attention * 15 / 16)
    # every card normalises and adds whole rows; what it stores of queries, keys and values is its own
    around = 8192 * 64 * (2 * 6 + 2 * 8) * 5120
    assert mine["traffic"].nbytes - around == pytest.approx((whole["traffic"].nbytes - around) / cards)
    assert mine["matmul"].launches == whole["matmul"].launches
    steps = step(TARGET, 4096, "f16"), step(share_of(TARGET, cards), 4096, "f16")
    assert [one.nbytes * cards for one in steps[1]] == pytest.approx([one.nbytes for one in steps[0]])


def test_one_card_shares_nothing() -> None:
    assert share_of(TARGET, 1) is TARGET
    with pytest.raises(ConfigError, match="3 cards cannot share"):
        share_of(TARGET, 3)


@pytest.mark.parametrize("cards", [2, 4, 8])
def test_a_card_of_several_scores_its_part_and_looks_at_all_keys(cards: int) -> None:
    """Two stripes each: attention is launched for both, and each card rounds what they see, the prompt and a stripe."""
    tokens = 131072
    in_bytes = replace(DRAFTER, rounded=replace(DRAFTER.rounded, attention=True))
    whole = kinds(scoring(in_bytes, tokens, 0.05))
    mine = kinds(striped(scoring(in_bytes, tokens, 0.05), tokens, cards))
    for kind in ("matmul", "traffic", "attention int8", "select"):
        assert mine[kind].flops * cards == pytest.approx(whole[kind].flops), kind
        assert mine[kind].nbytes * cards == pytest.approx(whole[kind].nbytes), kind
    assert mine["attention int8"].launches == mine["select"].launches == 2 * 27
    assert mine["importance"] == replace(whole["importance"], nbytes=whole["importance"].nbytes / cards)
    assert mine["rounding"].nbytes == pytest.approx(whole["rounding"].nbytes * (1 + 1 / (2 * cards)))
    assert mine["matmul"].launches == whole["matmul"].launches / 8 * 2  # chunks of 16K before, stripes now


def test_sums_are_two_a_layer_and_chunk() -> None:
    """Chunks of 8,192 tokens, and of 16,384 where products are made in int8."""
    assert [sums(TARGET, n) for n in (1, 8192, 8193, 131072)] == [128, 128, 256, 128 * 16]
    assert sums(replace(TARGET, rounded=Rounded(products=True)), 131072) == 128 * 8


def test_long_sums_go_by_another_protocol_than_short_ones() -> None:
    """A token's 20 KB take twice the time of their bytes, 512 tokens' 10 MB what NCCL reckons for protocol Simple: of a
    ring's 6 steps 8.4 + 6 * 3.4 us in place of 6.6 + 6 * 0.6."""
    share, known = share_of(TARGET, 4), fitted()
    predictor = Predictor.of(find_card("h200"), known, target_cards=4)
    alone = replace(predictor, known=replace(known, links=ALONE))
    bytes_s = 1.5 * 20480 / (find_card("h200").link * known.links.share)
    each = known.links.sum_s * sum_time(4)
    short = predictor.step_s(share, 0) - alone.step_s(share, 0)
    assert short == pytest.approx(128 * (each + 2 * bytes_s))
    long = predictor.prefill_s(share, 512) - alone.prefill_s(share, 512)
    assert long == pytest.approx(128 * (each + 18.6e-6 + 512 * bytes_s))


def test_what_goes_between_cards() -> None:
    """A layer of the drafter has 8 heads of 128 for keys and as many for values; a sum is a row in float32."""
    assert gathered(DRAFTER.config, 1000, 2) == 28 * 1000 * 2 * 8 * 128 * 2 / 2
    assert gathered(DRAFTER.config, 1000, 4) == 1.5 * gathered(DRAFTER.config, 1000, 2)
    assert summed(TARGET.config, 1000, 2) == 2 * 64 * 1000 * 5120 * 4
    assert summed(TARGET.config, 1000, 4) == 1.5 * summed(TARGET.config, 1000, 2)


def test_links_are_found_again(pairs: list[Row], ours: list[Row]) -> None:
    """Rows that take what the model says with some links are fitted by the same links, as near as two layers in 28 let
    them: of the first ones the longer of host and card counts.
    """
    links = replace(fitted().links, share=0.25, meeting_s=2e-3, uneven=0.3, sum_s=3e-5)
    known = replace(fitted(), links=links)
    step_row = next(row for row in pairs if row.key == ("decode", 0))

    def made(row: Row) -> Row:
        if row is step_row:
            return replace(row, seconds=row.predict(known))
        if row.cards == 1:
            return replace(row, seconds=1.07 * row.predict(replace(known, links=ALONE)))
        longest = row.predict(replace(known, links=replace(ALONE, uneven=links.uneven)))  # as slow as all its work
        return replace(row, seconds=row.predict(known) + 0.07 * longest)

    found = fit_links(list(map(made, ours)), list(map(made, pairs)), replace(known, links=ALONE))
    assert (found.share, found.meeting_s, found.uneven, found.sum_s) == (
        pytest.approx(0.25), pytest.approx(2e-3, rel=1e-2), pytest.approx(0.3, rel=1e-2), pytest.approx(3e-5),
    )  # fmt: skip


def test_graphs_of_cards_begin_one_after_the_other() -> None:
    """The launches of 512 tokens on four cards, and their sums, of three cards more than one."""
    share = share_of(TARGET, 4)
    launches = sum(one.launches for one in reading(share, 512))
    assert graphs_begun(share, 512, launches, 4) == pytest.approx(3 * (launches + 128) * NODE_S)
    assert graphs_begun(share, 512, launches, 1) == 0.0


def test_a_card_alone_waits_for_what_it_plans_and_for_nothing_else_where_launches_are_repeated() -> None:
    """Of 28 layers in BF16 the first is recorded, 3.25 times as much work; the last is entered for few queries."""
    known = fitted()
    predictor = Predictor.of(find_card("h200"), known)
    work = scoring(DRAFTER, 8192, 0.25)
    device = busy(work, find_card("h200"), "sm_90a", known.rates["sm_90a"])
    launches = {one.kind: one.launches / 27 for one in work if one.kind != "importance"}
    attention = launches["sparse"] + launches["select"]
    others = sum(launches.values()) - attention
    planned = known.host.launch_s * (3.25 * attention + 3.75 * others)
    assert predictor.score_s(DRAFTER, 8192, 0.25) == pytest.approx(planned + 27 / 28 * device)
    longer = scoring(DRAFTER, 16384, 0.25)
    device = busy(longer, find_card("h200"), "sm_90a", known.rates["sm_90a"])
    assert predictor.score_s(DRAFTER, 16384, 0.25) == pytest.approx(known.host.score_s + device)


def test_cards_record_once_what_their_stripes_share() -> None:
    """Of a layer two launches of attention and 20 others a card, in two stripes; with layers of two kinds the others
    are recorded twice, in the first three layers."""
    work = [Work("sparse", 0.0, 0.0, 27 * 2), Work("traffic", 0.0, 0.0, 27 * 20), Work("importance", 0.0, 0.0, 99)]
    assert begun(work, DRAFTER.config, 0, 4) == pytest.approx(3.25 * (2 + 10) + 0.08 * 10)
    assert begun(work, DRAFTER.config, 2, 4) == pytest.approx(3.25 * (2 + 20) + 0.08 * (3 * 22 - 22))


def test_a_slower_host_is_waited_for_where_the_card_has_less_to_do() -> None:
    """Of 2K tokens importance takes the host longer than the card: its four launches are planned in every layer."""
    known = fitted()
    usual, slow = (Predictor.of(find_card("h200"), known.by_host(known.host.launch_us * times)) for times in (1.0, 2.0))
    work = scoring(DRAFTER, 2048, 0.5)
    launches = {one.kind: one.launches for one in work}
    looking = launches.pop("importance")
    found = slow.score_s(DRAFTER, 2048, 0.5)
    planned = 2 * known.host.launch_s * (begun(work, DRAFTER.config, 0, 1))
    rest = 2 * known.host.launch_s * (looking + 0.08 * sum(launches.values()))
    assert found == pytest.approx(planned + 27 / 28 * rest)
    assert usual.score_s(DRAFTER, 2048, 0.5) < found
    assert usual.score_s(DRAFTER, 131072, 0.5) == slow.score_s(DRAFTER, 131072, 0.5)  # the card has more to do
    assert known.by_host(None) is known


def test_scans_of_few_heads_take_as_long_as_those_of_many() -> None:
    """48 heads in two halves each are blocks for most multiprocessors of an H200; 24 and 12 leave more of them idle."""
    card = find_card("h200")
    scans = [next(one for one in reading(share_of(TARGET, cards), 8192) if one.kind == "delta") for cards in (1, 2, 4)]
    assert [one.blocks for one in scans] == [96, 48, 24]
    assert [one.flops for one in scans[1:]] == [pytest.approx(scans[0].flops / cards, rel=0.01) for cards in (2, 4)]
    times = [bound(one, card, "sm_90a") for one in scans]
    assert times == [pytest.approx(times[0], rel=0.01)] * 3
    small = replace(card, multiprocessors=48)  # on which 96 blocks take two rounds
    assert bound(scans[0], small, "sm_90a") == pytest.approx(2 * bound(scans[1], small, "sm_90a"), rel=0.01)


def test_halves_are_twice_as_many_products_of_half_the_tokens() -> None:
    whole = reading(share_of(TARGET, 4), 8192)
    for before, after in zip(whole, halved(whole), strict=True):
        assert (after.flops, after.launches) == (before.flops, 2 * before.launches)
        assert [(one.tokens, count) for one, count in after.products] == [
            (one.tokens // 2, 2 * count) for one, count in before.products
        ]


def test_nothing_is_waited_for_without_links() -> None:
    assert (ALONE.share, ALONE.meeting_s, ALONE.uneven, ALONE.sum_s) == (inf, 0.0, 0.0, 0.0)


def test_few_rows_of_several_cards_are_fitted_to(pairs: list[Row], ours: list[Row]) -> None:
    """Of H100s three of a target, of two H200 four scorings; no request, and nothing on four cards."""
    used = [row for row in pairs if row.fit]
    assert [(row.bench, row.cards) for row in used].count(("ttft", 2)) == 1
    assert {row.bench for row in used} == {"decode", "ttft"}
    assert len(used) == 3
    scorings = [row for row in ours if row.fit and row.cards > 1]
    assert [(row.bench, row.cards) for row in scorings] == [("drafter", 2)] * 4
    assert not any(", keep" in row.name for row in (*used, *scorings))


def test_rows_held_out_of_two_cards_are_within_a_tenth(pairs: list[Row], ours: list[Row]) -> None:
    both = [row for row in (*pairs, *ours) if not row.fit and row.cards == 2]
    assert len(both) >= 16
    assert not {row.name: row.error(fitted()) for row in both if abs(row.error(fitted())) > 0.1}


@pytest.mark.parametrize("cards", [2, 3, 4, 8])
def test_stripes_are_as_uneven_as_their_pairs_of_tokens_say(cards: int) -> None:
    """Each half of a layer takes as long as its longest stripe, if all wait for that one."""
    ends = [i / (2 * cards) for i in range(2 * cards + 1)]
    parts = [after**2 - before**2 for before, after in pairwise(ends)]
    assert uneven(cards) == pytest.approx(max(parts[:cards]) + max(parts[cards:]) - 1 / cards)


def test_rows_of_a_card_that_was_never_fitted_to_are_near(pairs: list[Row]) -> None:
    """The H100 is known by its data sheet alone; the longest scoring is predicted for the kernel before."""
    held = {row.name: row.error(fitted()) for row in pairs if not row.fit and row.cards == 1 and row.seconds > 0.2}
    assert len(held) >= 7
    assert all(abs(error) < 0.11 for error in held.values()), held


def test_two_cards_are_faster_than_one_and_four_than_two() -> None:
    card, times = find_card("h200"), []
    for cards in (1, 2, 4):
        one = Predictor.of(card, fitted(), cards, cards)
        target = share_of(TARGET, cards)
        found = one.compressed(target, DRAFTER, 131072, 0.05, 0.24)
        times.append((found.score_s, found.prefill_s, one.full_s(target, 131072)))
    assert all(column == tuple(sorted(column, reverse=True)) for column in zip(*times, strict=True))
    assert times[0][0] / times[2][0] < 4


def test_a_prompt_of_few_pages_is_read_by_one_card() -> None:
    card = find_card("h200")
    alone, four = (Predictor.of(card, fitted(), cards) for cards in (1, 4))
    assert four.score_s(DRAFTER, 800) == alone.score_s(DRAFTER, 800)
    assert four.score_s(DRAFTER, 131072) < alone.score_s(DRAFTER, 131072)


def test_plan_says_how_many_cards(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*PAIR, "--card", "h200", "--cards", "4", "--target-cards", "2", "-p", "8k,128k"]
    assert call(*asked, monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "a drafter read by 4 and a target shared by 2" in out
    assert call(*asked, "--json", monkeypatch=monkeypatch) == 0
    found = json.loads(capsys.readouterr().out)["predicted"]
    assert (found["cards"], found["target_cards"]) == (4, 2)
    assert all(row["ttft_s"] < row["full_s"] for row in found["times"])


def test_what_one_card_has_no_room_for_two_may_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """70B as Q8_0 takes 70 GiB and 128K tokens of it 40: no card of 80 GiB holds that, and each of two does."""
    asked = ["plan", "--synthetic-target", "llama-3.1-70b", "--target-type", "q8_0", "--card", "h100", "--json"]
    seen = []
    for cards in ("1", "2"):
        call(*asked, "--cards", cards, monkeypatch=monkeypatch)
        seen.append(json.loads(capsys.readouterr().out)["predicted"]["times"][-1]["full_s"])
    assert seen[0] is None
    assert seen[1] > 0


def test_cards_that_are_not_linked_have_memory_and_no_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*PAIR, "--card", "rtx4090", "--cards", "2"]
    assert call(*asked, monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert "no times: of several cards they are predicted where NVLink joins these" in out
    assert "GiB on each of 2 cards" in out
    assert call(*asked, "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["predicted"]["times"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--card", "h200", "--cards", "3"], "1 or 2 or 4 can: --target-cards"),
        (["--card", "h200", "--cards", "99"], "--cards"),
    ],
)
def test_wrong_numbers_of_cards_are_a_line(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*PAIR, *options, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_drafters_with_recurrent_layers_do_not_read_on_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*PAIR[:3], "--synthetic-drafter", "tiny-qwen35", "--card", "h200", "--cards", "2"]
    assert call(*asked, monkeypatch=monkeypatch) == 2
    assert "recurrent layers" in capsys.readouterr().err
