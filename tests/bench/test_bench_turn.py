"""`sp bench turn` on the CPU: chats of exact length, what each policy reads, what is recorded and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke

from sp.bench import turn as bench
from sp.bench.prompts import TranscriptMaker
from sp.bench.record import FIELDS
from sp.bench.ttft import without_ends
from sp.bench.turn import POLICIES, WARM_TURNS, TimedTurn, TurnBench, TurnCell, TurnTiming, describe_turn, turn_config
from sp.errors import ConfigError, DeviceError
from sp.scoring import SCORERS
from sp.session import ConversationOptions, Pipeline, RunOptions, synthetic
from sp.session.memory import same_start
from sp.studies.sample import sample

OPTIONS = RunOptions(keep_ratio=0.4, max_new_tokens=1)
KEY = {"target", "drafter", "prompt_tokens", "new_tokens", "keep_ratio", "policy", "recall", "vram"}


@pytest.fixture(scope="module")
def pair() -> Pipeline:
    opened = Pipeline(*(synthetic(shape, "q8_0", device="cpu") for shape in ("tiny-qwen35", "tiny-qwen3")))
    return replace(opened, target=without_ends(opened.target))


@pytest.fixture(scope="module")
def maker(pair: Pipeline) -> TranscriptMaker:
    document, example = sample()
    return TranscriptMaker(document, example.question, pair.target)


def test_chats_have_exactly_the_length_and_part_where_the_transcript_ends(
    maker: TranscriptMaker, pair: Pipeline
) -> None:
    for tokens, new in ((300, 100), (1000, 130), (5000, 700)):
        shown = [maker.prompt(maker.turn(tokens, new, seed)).tokenise(pair.target.tokenizer) for seed in (1, 2, 3)]
        assert [len(each) for each in shown] == [tokens + new] * 3
        first = maker.prompt(maker.first(tokens, new)).tokenise(pair.target.tokenizer)
        for one, other in ((shown[0], shown[1]), (shown[1], shown[2]), (first, shown[0])):
            assert tokens <= same_start(one.ids, other.ids) <= tokens + 4  # "Text " is of every turn
        asked = {each.prompt.text[-300:] for each in shown}
        assert len(asked) == 3, "every turn asks something else"
        assert not shown[0].mask("protected")[tokens:].all()
    assert maker.turn(300, 100, 5) == maker.turn(300, 100, 5)
    with pytest.raises(ConfigError, match="a transcript of 3 tokens is too short"):
        maker.turn(3, 100, 1)
    with pytest.raises(ConfigError, match="a turn of 40 tokens"):
        maker.turn(600, 40, 1)


def test_policies_take_turns_and_read_what_is_theirs(
    maker: TranscriptMaker, pair: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sp.session.memory.CLOSE", 128)  # or so short a transcript has no snapshot
    ticks: list[int] = []
    made = TurnBench(pair, maker, 2, progress=lambda: ticks.append(1))
    found = {t.cell.policy: t for t in made.run([700], 160, OPTIONS, ConversationOptions(recall="off"))}
    assert tuple(found) == tuple(POLICIES)
    assert len(ticks) == 6
    for timing in found.values():
        assert timing.error is None
        assert len(timing.turns) == 2
        for turn in timing.turns:
            assert turn.ttft_s == pytest.approx(sum(turn.stages.values()))
            assert turn.usage["prompt"] == 860
            assert turn.peak_bytes > 0
    talk, cold, prefix = (found[name].turns[-1] for name in POLICIES)
    assert 700 <= talk.usage["cached"] <= 704
    assert 0 < talk.usage["kept"] < talk.usage["new"] <= 160
    assert talk.usage["drafted"] < 220 < cold.usage["drafted"]
    assert talk.usage["read"] < cold.usage["read"] <= 0.4 * 860 + 100  # markup and question
    assert prefix.usage["kept"] == prefix.usage["new"] == 860 - prefix.usage["cached"] <= 160
    assert prefix.usage["drafted"] == 0
    assert {"render", "tokenise", "draft", "score", "select", "recall", "target prefill", "other"} <= talk.stages.keys()
    assert {"draft", "score", "target prefill"} <= cold.stages.keys()
    assert not {"draft", "score"} & prefix.stages.keys()
    assert talk.host_bytes > 0 == cold.host_bytes, "snapshots of a recurrent target"
    starts = {name: timing.start.usage["read"] for name, timing in found.items() if timing.start}
    assert starts["prefix"] > 700 > starts["conversation"]


def test_a_transcript_is_read_once_and_the_policies_change_places(
    maker: TranscriptMaker, pair: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, str]] = []

    class Fake:
        nbytes = 7
        host_nbytes = 0

        def __init__(self, name: str) -> None:
            self.name = name

        def clear(self) -> None:
            order.append((self.name, "clear"))

    def measured(policy, make, besides):  # type: ignore[no-untyped-def]
        order.append((policy.name, make().text[-40:]))
        if policy.name == "prefix" and len(order) > 8:
            raise DeviceError("the GPU's memory is full")
        return TimedTurn(1.0 + besides, {}, {"prompt": 1}, 100 - besides)

    fakes = {name: lambda *_, name=name: Fake(name) for name in POLICIES}
    monkeypatch.setattr(bench, "POLICIES", fakes)
    monkeypatch.setattr(bench, "measure_turn", measured)
    timings = list(TurnBench(pair, maker, 3).run([300], 100, OPTIONS, ConversationOptions()))
    rounds = 1 + WARM_TURNS + 3
    talks = [text for name, text in order if name == "conversation" and text != "clear"]
    assert len(talks) == len(set(talks)) == rounds, "as many turns, each another one"
    leads = [order[at][0] for at in (0, 3, 6)]
    assert len(set(leads)) == 3
    assert [timing.error for timing in timings] == [None, None, "the GPU's memory is full"]
    assert len(timings[0].turns) == 3
    assert timings[0].turns[-1].ttft_s == 1 + 7, "two others at first, then one: the other has failed"
    assert [name for name, text in order if text == "clear"].count("prefix") == 1
    metrics = describe_turn(timings[2], pair, "numpy")
    assert metrics["samples"] == [turn.ttft_s for turn in timings[2].turns]


def test_within_a_budget_they_come_one_after_the_other(
    maker: TranscriptMaker, pair: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[list[str]] = []
    monkeypatch.setattr(Pipeline, "within", lambda self, vram: self)
    monkeypatch.setattr(TurnBench, "_timed", lambda self, _, timings: groups.append([t.order for t in timings]) or [])
    list(TurnBench(pair, maker, 1).run([300], 100, OPTIONS, ConversationOptions(), (None, 1 << 30)))
    assert groups == [["interleaved"] * 3, ["in blocks"], ["in blocks"], ["in blocks"]]


def test_percentiles_are_those_of_the_samples() -> None:
    cell = TurnCell(1000, 100, "conversation", OPTIONS, ConversationOptions())
    turns = [
        TimedTurn(s, {"draft": s / 2, "score": s / 2}, {"kept": int(10 * s)}, int(s), int(2 * s)) for s in range(1, 22)
    ]
    metrics = TurnTiming(cell, turns[0], turns).metrics()
    assert (metrics["ttft_p50_s"], metrics["ttft_p95_s"], metrics["ttft_max_s"]) == (11, 20, 21)
    assert (metrics["peak_bytes"], metrics["host_bytes"]) == (21, 42)
    assert metrics["stages"] == {"draft": 5.5, "score": 5.5}
    assert metrics["usage"] == {"kept": 110}
    assert TurnTiming(cell, error="no").metrics()["ttft_p95_s"] is None


def test_cells_are_told_apart(pair: Pipeline) -> None:
    def config(policy: str, vram: int | None = None, **memory: str) -> dict[str, object]:
        return turn_config(TurnCell(1000, 100, policy, OPTIONS, ConversationOptions(**memory), vram), pair, "numpy")

    assert config("cold").keys() >= KEY
    cells = [config(policy) for policy in POLICIES] + [config("conversation", recall="off")]
    cells += [config("conversation", keys="q4_0"), config("conversation", 23 << 30)]
    assert len({json.dumps(each) for each in cells}) == len(cells)
    assert config("cold", keys="q4_0") == config("cold"), "nobody keeps keys"
    assert (config("prefix")["drafter"], config("prefix")["keep_ratio"]) == (None, 1.0)
    assert config("conversation", 23 << 30)["vram"] == "23g"


def test_the_share_of_blocks_that_is_read_stands_beside_the_times(maker: TranscriptMaker, pair: Pipeline) -> None:
    sparse = SCORERS.build("tail", {"sparse": "density:0.2"})
    made = TurnBench(pair, maker, 1, ("conversation", "prefix"))
    talk, prefix = made.run([600], 300, replace(OPTIONS, scorer=sparse), ConversationOptions(recall="off"))
    assert 0 < talk.metrics()["density"] <= 1
    assert prefix.metrics()["density"] is None


def command(*arguments: str):  # type: ignore[no-untyped-def]
    common = ("--device", "cpu", "-n", "1", "--new-tokens", "100", "--synthetic-target", "tiny-qwen35")
    return invoke(["bench", "turn", *common, "--synthetic-drafter", "tiny-qwen3", *arguments])


def test_the_command_records_what_is_looked_up(tmp_path: Path) -> None:
    given = (
        "-p",
        "200",
        "--keep-ratio",
        "0.5",
        "-r",
        "2",
        "--drafter-type",
        "q8_0",
        "--keys",
        "q4_0",
        "--recall",
        "append",
    )
    done = command(*given, "--record", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    rows = {row["policy"]: row for row in json.loads(done.stdout)["tests"]}
    (file,) = tmp_path.glob("*/turn.jsonl")
    records = {record["config"]["policy"]: record for record in map(json.loads, file.read_text().splitlines())}
    assert records.keys() == rows.keys() == POLICIES.keys()
    for name, record in records.items():
        config, metrics = record["config"], record["metrics"]
        assert set(FIELDS) <= record.keys()
        assert config.keys() >= KEY
        assert (config["prompt_tokens"], config["new_tokens"]) == (200, 100)
        assert config["recall"] == ("append" if name == "conversation" else "off")
        assert config["keys"] == ("q4_0" if name == "conversation" else None)
        assert metrics["ttft_p50_s"] <= metrics["ttft_p95_s"] <= max(record["samples"])
        assert metrics["ttft_p50_s"] == pytest.approx(np.median(record["samples"])) == rows[name]["ttft_p50_s"]
        assert {"peak_bytes", "host_bytes", "stages"} <= metrics.keys()
    table = command(*given[:6], "-r", "1", "--policies", "prefix", "-o", "md").stdout.splitlines()
    lines = [line for line in table if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert [line.split()[1] for line in lines[2:]] == ["prefix"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies", "warm"), "prefix"),
        (("--policies", ","), "--policies is empty"),
        (("--recall", "yes"), "recall"),
        (("--keys", "q9"), "keys"),
        (("--keep-ratio", "1"), "add one below 1"),
        (("--scorer", "tail,bm25"), "one --scorer"),
        (("--scorer", "lookahead", "-p", "300"), "cannot reuse keys"),
        (("-p", "1024k"), "context"),
        (("-p", "0"), "at least 1"),
        (("-p", "300", "--new-tokens", "100,200"), "a number of tokens"),
        (("-p", "3"), "; choose more"),
        (("--vram", "none,18g"), "omit it"),
        (("-o", "pdf"), "pdf"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = command(*arguments)
    assert done.exception is not None
    assert message in str(done.exception)
    assert not isinstance(done.exception, SystemExit)
