"""`sp bench decode` on the CPU: what is measured, compared, simulated, recorded, drawn and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import invoke
from models.tiny_drafts import write_draft

from sp.bench import decode as bench
from sp.bench.decode import DecodeTiming, TimedAnswer, ratio_interval, settings_of
from sp.bench.record import newest
from sp.bench.simulate import SIMULATED, Simulated, deepest, read_trace, write_trace
from sp.decode import DDTree
from sp.errors import ConfigError
from sp.models import load_model
from sp.models.synthetic.dflash_synthetic import write_synthetic_draft
from sp.models.synthetic.synthetic import write_synthetic
from sp.studies.pages.report import write_report
from sp.studies.plots.ttft_plots import draw_decoding, figure_of
from sp.studies.tables.decode_table import decode_tables


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Options that name a tiny target and its draft, both with random weights: right by chance alone."""
    folder = tmp_path_factory.mktemp("pair")
    target = write_synthetic(folder / "target.gguf", "tiny-qwen35", "q8_0")
    return [
        "--target",
        target,
        "--speculator",
        write_synthetic_draft(folder / "draft.gguf", "dflash-tiny-qwen35", "q8_0"),
    ]


@pytest.fixture(scope="module")
def real(pair: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records and trace of a short run."""
    folder = tmp_path_factory.mktemp("real")
    call(
        *(*pair, "--tasks", "needle,needle[value=word]", "-p", 160, "-n", 1, "--budgets", "3", "-r", 1),
        *("--nodes", "4,18", "--record", folder / "records", "--trace", folder / "trace.json", "-o", "csv"),
    )
    return folder


def call(*arguments: object) -> str:
    found = invoke(["bench", "decode", "--device", "cpu", *map(str, arguments)])
    if found.exception is not None:
        raise found.exception
    return found.output


def of(folder: Path, bench: str) -> list[dict[str, Any]]:
    return [record for path in folder.rglob(f"{bench}.jsonl") for record in newest(path)]


def test_a_real_pair_is_compared_with_greedy_answers_token_for_token(real: Path) -> None:
    records = {(r["config"]["method"], r["config"]["budget"]): r for r in of(real, "decode")}
    assert list(records) == settings_of(["dflash", "ddtree"], [3], 16)
    plain = records["greedy", 0]["metrics"]
    assert plain["acceptance_length"] == plain["speedup"] == 1
    for (method, _), record in records.items():
        metrics = record["metrics"]
        assert metrics["equal"] == metrics["answers"] == 2
        assert metrics["tokens"] == plain["tokens"], "what follows the end of an answer is not counted"
        assert metrics["acceptance_low"] <= metrics["acceptance_length"] <= metrics["acceptance_high"]
        assert set(metrics["by_task"]) == {"needle", "needle value=word"}
        assert record["config"]["mode"] == ("greedy" if method == "greedy" else "real acceptance")
        passes = [n for sample in record["samples"] for n in sample["passes"]]
        assert sum(passes) / len(passes) == metrics["acceptance_length"]


def test_parts_of_a_round_stand_beside_the_greedy_step(real: Path) -> None:
    found = {r["config"]["nodes"]: r for r in of(real, "verify")}
    assert [found[n]["config"]["pass"] for n in (4, 18)] == ["chain", "tree"]
    for record in found.values():
        m = record["metrics"]
        assert m["ratio_to_decode"] == m["ms"] / m["decode_ms"] > 0
        assert m["draft_ms"] == m["guess_ms"] + m["remember_ms"] > 0
        assert len(record["samples"]) == 4


def test_random_weights_with_simulated_acceptance(real: Path, tmp_path: Path) -> None:
    """In the tiny shape with a draft of blocks of 16; lengths of a trace are taken again and again."""
    write_trace(tmp_path / "t.json", {"target": "other.gguf"}, {("ddtree", 22): [3, 1, 4], ("dflash", 7): [2]})
    text = call(
        *("--synthetic", "tiny-qwen35", "--type", "q8_0", "--accept", "8", "--simulate", tmp_path / "t.json"),
        *("--budgets", "7,22", "-p", 40, "--new", 18, "-r", 1, "--nodes", "", "--record", tmp_path, "-o", "md"),
        *("--plots", tmp_path),
    )
    assert SIMULATED in text
    assert "Real acceptance" not in text
    records = {(r["config"]["method"], r["config"]["budget"], r["config"].get("acceptance")): r
               for r in of(tmp_path, "decode")}  # fmt: skip
    told = "as in t.json"
    wanted = {("ddtree", 22, told): 8 / 3, ("dflash", 7, told): 2.0}
    wanted |= {(*way, "8 a pass"): 8.0 for way in (("ddtree", 7), ("ddtree", 22), ("dflash", 7), ("dflash", 15))}
    assert {key for key in records if key[0] != "greedy"} == set(wanted)
    for key, length in wanted.items():
        metrics = records[key]["metrics"]
        assert metrics["acceptance_length"] == pytest.approx(length, rel=0.2 if key[2] == told else 1e-9)
        assert records[key]["config"]["mode"] == SIMULATED
        assert metrics["equal"] is None
        assert metrics["speedup"] == pytest.approx(metrics["tok_s"] / metrics["greedy_tok_s"])
    assert records["ddtree", 22, told]["metrics"]["origin"] == "target other.gguf"
    [name] = [path.name for path in tmp_path.glob("*.png")]
    assert name.endswith("-simulated.png")


def test_a_short_run_takes_lengths_from_all_of_a_trace(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", {}, {("dflash", 7): [1] * 60 + [5] * 60})
    call(
        *("--synthetic", "tiny-qwen35", "--type", "q8_0", "--simulate", tmp_path / "t.json", "--methods", "dflash"),
        *("--budgets", "7", "-p", 40, "--new", 40, "-r", 1, "--nodes", "", "--record", tmp_path),
    )
    [record] = [r for r in of(tmp_path, "decode") if r["config"]["method"] == "dflash"]
    assert 1.5 < record["metrics"]["acceptance_length"] < 4.5


def test_records_become_tables_and_pictures(real: Path, tmp_path: Path) -> None:
    page = write_report([real / "records"], tmp_path).read_text()
    assert "answers equal to greedy" in page
    assert "| 2 of 2 |" in page
    assert "decode-target.png" in page
    assert "decode-target.png" in {path.name for path in tmp_path.iterdir()}
    records = [r for r in of(real, "decode") if r["config"]["method"] != "greedy"]
    titles = [axes.get_title(loc="left") for axes in figure_of(records).axes]
    assert titles == ["tokens per pass", "tokens per second", "tokens per pass by task, tree"]
    told = [{**r, "config": {**r["config"], "mode": SIMULATED, "acceptance": "4 a pass"}} for r in records]
    assert all(SIMULATED in axes.get_title(loc="left") for axes in figure_of(told).axes)
    assert [path.name for path in draw_decoding([*records, *told], tmp_path)] == [
        "decode-target.png", "decode-target-simulated.png",
    ]  # fmt: skip
    assert [SIMULATED in title for title, *_ in decode_tables([*records, *told])] == [False, False, True]
    later = [{**r, "config": {**r["config"], "budget": 2}} for r in records]
    first, *_ = [cells for _, _, cells, _ in decode_tables([*records, *later])]
    methods = sorted({r["config"]["method"] for r in records})
    assert [row[0] for row in first] == sorted(methods * 2), "ways that compare stand together"
    assert [row[1] for row in first[:2]] == ["2", str(records[0]["config"]["budget"])]


@pytest.mark.parametrize(
    "change", [{"context": 4096}, {"kv": "q4_0 rotated"}, {"path": "portable"}, {"draft": "b.gguf"}]
)
def test_runs_that_do_not_compare_share_no_table_and_no_picture(
    real: Path, tmp_path: Path, change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sp.studies.plots.ttft_plots.save_figure", lambda figure, path: path)  # names are asked for
    records = [r for r in of(real, "decode") if r["config"]["method"] != "greedy"]
    others = [{**r, "config": {**r["config"], **change}} for r in records]
    first, second = draw_decoding([*records, *others], tmp_path)
    assert first != second
    assert str(next(iter(change.values()))).replace("_", "-").split()[0] in f"{first.name} {second.name}"
    assert len(list(decode_tables([*records, *others]))) == 2 * len(list(decode_tables(records)))


def test_rounds_are_of_no_more_nodes_than_a_short_block_can_fill(pair: list[object], tmp_path: Path) -> None:
    """A block of two has one guess, of which a tree takes the eight likeliest."""
    model = load_model(str(pair[1]))
    draft = write_draft(tmp_path, "dflash", model.config, (0, 2), block_size=2)
    call(
        *("--target", pair[1], "--speculator", draft, "--accept", 2, "--methods", "ddtree", "--budgets", 22, "-p", 40),
        *("--new", 4, "-r", 1, "--nodes", "2,5,16,23", "--record", tmp_path),
    )
    rounds = of(tmp_path, "verify")
    *_, (_, _, cells, _) = decode_tables(rounds[::-1])
    assert [row[1] for row in cells] == ["2", "5", "9"]
    found = {r["config"]["nodes"]: r["config"] for r in rounds}
    assert {nodes: config["pass"] for nodes, config in found.items()} == {2: "chain", 5: "tree", 9: "tree"}
    assert {config["kept"] for config in found.values()} == {2}


def test_a_trace_is_read_as_it_was_written(real: Path, tmp_path: Path) -> None:
    found = read_trace(real / "trace.json")
    record = next(r for r in of(real, "decode") if (r["config"]["method"], r["config"]["budget"]) == ("ddtree", 3))
    assert list(found.of(("ddtree", 3), 16)) == [n for sample in record["samples"] for n in sample["passes"]]
    assert "draft draft.gguf" in found.origin
    for text in ("{", "[]", '{"accepted": [], "origin": {}}', '{"origin": {}, "accepted": [{"method": "a"}]}',
                 '{"origin": {}, "accepted": [{"method": "a", "budget": 1, "lengths": [0]}]}'):  # fmt: skip
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ConfigError, match=r"x\.json"):
            read_trace(tmp_path / "x.json")


def test_simulated_lengths_go_down_the_deepest_branch() -> None:
    rng = np.random.default_rng(0)
    decoder = Simulated(DDTree(12, 3), [2, 30])
    assert decoder.nodes(6) == 13
    tree = decoder.propose(4, rng.standard_normal((5, 9)).astype(np.float32), rng)
    path = deepest(tree)
    assert tree.parents[path].tolist() == [-1, *path[:-1]]
    assert len(path) == tree.depths.max() + 1 == 6


def test_intervals_cover_the_ratio_of_sums() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(100):
        wholes = rng.integers(1, 9, 40)
        low, high = ratio_interval(wholes * rng.normal(3, 0.5, 40), wholes)[1:]
        inside += low < 3 < high
    assert 85 <= inside <= 100
    one = TimedAnswer("a", (1, 2, 3), (2,), (0.5,))
    metrics = DecodeTiming(("dflash", 4), (one, one), (one, TimedAnswer("a", (1, 2, 4), (1, 1), (0.5, 0.5)))).metrics()
    assert metrics["equal"] == 1
    assert metrics["speedup"] == pytest.approx(4 / (4 / 1.5))


def test_answers_that_end_at_once_have_no_pass_to_count(pair: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    ended, whole = TimedAnswer("a", (2,), (), ()), TimedAnswer("b", (1, 2, 3), (2,), (0.5,))
    metrics = DecodeTiming(
        ("dflash", 4), (ended, whole), (ended, TimedAnswer("b", (1, 2, 3), (1, 1), (0.5, 0.5)))
    ).metrics()
    assert (metrics["answers"], metrics["equal"], metrics["passes"]) == (2, 2, 1)
    assert list(metrics["by_task"]) == ["b"]
    monkeypatch.setattr(bench, "answer", lambda *_: ended)
    with pytest.raises(ConfigError, match="every answer ended with its first token"):
        call(*pair, "--tasks", "needle", "-p", 160, "-n", 1, "--budgets", "3", "--nodes", "")


def test_json(pair: list[object]) -> None:
    short = *pair, "--tasks", "needle", "-p", 160, "-n", 1, "--methods", "ddtree", "--budgets", "2"
    found = json.loads(call(*short, "--nodes", "3", "-r", 1, "--json"))
    assert [test.get("method", "round") for test in found["tests"]] == ["greedy", "ddtree", "round"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--synthetic", "tiny-qwen35"], "--accept N or --simulate FILE"),
        (
            ["--synthetic", "tiny-qwen35", "--target", "x.gguf", "--accept", "4"],
            "exclude each other",
        ),
        (["--accept", "0"], "--accept 0"),
        (["--accept", "7", "--budgets", "4"], "no pair of --methods and --budgets accepts so many"),
        (["--simulate", "none.json"], "cannot read none.json"),
        (["--accept", "4", "--trace", "x.json"], "omit --trace"),
        (["--methods", "dflsh"], "did you mean 'dflash'"),
        (["--budgets", "0"], "1 to 63 draft tokens"),
        (["--budgets", "64"], "1 to 63 draft tokens"),
        (["--nodes", "65"], "2 to 64 nodes"),
        (["-p", "1k,2k"], "--prompt is a number of tokens"),
        (["--tasks", "needl"], "did you mean 'needle'"),
        (["--kv", "q3"], "Known: 4bit, 5bit, f16"),
        (["--output", "xml"], "--output is"),
        (["--target", "some.gguf"], "needs a draft model for some.gguf"),
    ],
)
def test_what_is_refused(pair: list[object], arguments: list[str], said: str) -> None:
    given = [] if {"--target", "--synthetic"} & set(arguments) else map(str, pair)
    found = invoke(["bench", "decode", "--device", "cpu", *given, *arguments])
    assert said in str(found.exception)
    assert "\n" not in str(found.exception)


def test_help_shows_examples() -> None:
    assert "sp bench decode --synthetic qwen3.6-27b" in invoke(["bench", "decode", "--help"]).output
