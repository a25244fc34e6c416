"""`sp bench ttft` on the CPU: what is timed, recorded, taken up again and refused; prompts of exact length."""

from __future__ import annotations

import copy
import csv
import io
import json
import mmap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke

from sp.bench import ttft as bench
from sp.bench.prompts import PromptMaker
from sp.bench.record import shape_name
from sp.bench.ttft import Bench, RequestCell, config_of, describe, measure, requests_of, watched, without_ends
from sp.errors import ConfigError, DeviceError, PromptError
from sp.models import Arithmetic, RopeScaling
from sp.models.synthetic.shapes import find_shape
from sp.prompt import Prompt
from sp.quant import Math
from sp.scoring import SCORERS
from sp.scoring.base import attending, drafting
from sp.session import Loaded, Pipeline, RunOptions
from sp.studies.plots.ttft_plots import STAGE_COLOURS, draw_memory
from sp.studies.sample import sample
from sp.studies.tables.ttft_table import GROUPS, cells_of, row_of


@pytest.fixture(scope="module")
def pair() -> Pipeline:
    opened = Pipeline.open(device="cpu")
    return replace(opened, target=without_ends(opened.target))


@pytest.fixture(scope="module")
def maker(pair: Pipeline) -> PromptMaker:
    document, example = sample()
    return PromptMaker(document, example.question, example.needle, pair.target.tokenizer, pair.target.template)


def test_prompts_have_exactly_the_length_and_differ(maker: PromptMaker, pair: Pipeline) -> None:
    needle = sample()[1].needle
    for tokens in (100, 777, 5000):
        prompts = [maker.make(tokens, seed) for seed in (0, 1)]
        assert [len(prompt.tokenise(pair.target.tokenizer)) for prompt in prompts] == [tokens, tokens]
        assert all(prompt.text.count(needle) == 1 for prompt in prompts)
        assert tokens == 100 or prompts[0].text != prompts[1].text
        assert prompts[0].text == maker.make(tokens, 0).text
    with pytest.raises(ConfigError, match="; choose more"):
        maker.make(10)


def test_a_request_tells_where_its_time_went(maker: PromptMaker, pair: Pipeline) -> None:
    options = RunOptions(keep_ratio=0.2, compress="always", max_new_tokens=9)
    request = measure(pair, maker.make(600), options)
    assert request.ttft_s == pytest.approx(sum(request.stages.values()))
    assert {"tokenise", "score", "select", "target prefill", "other"} <= set(request.stages)
    assert "decode" not in request.stages
    assert request.prompt_tokens == 600
    assert 0 < request.kept_tokens <= 120
    assert request.decode_tok_s is not None
    assert request.density is None  # dense


def test_the_full_prefill_stands_beside_every_setting_and_the_cold_request_is_told_apart(
    maker: PromptMaker, pair: Pipeline
) -> None:
    sparse = SCORERS.build("tail", {"sparse": "density:0.3"})
    settings = [RunOptions(keep_ratio=0.5), RunOptions(keep_ratio=0.4, scorer=sparse)]
    ticks: list[int] = []
    made = Bench(pair, maker, 2, 1, timelines=True, progress=lambda: ticks.append(1))
    timings = list(made.run([105, 120], [replace(options, max_new_tokens=2) for options in settings]))
    assert [(t.cell.tokens, t.cell.full, t.cell.options.keep_ratio) for t in timings] == [
        (n, keep == 1, keep) for n in (105, 120) for keep in (1.0, 0.5, 0.4)
    ]
    assert len(ticks) == 2 * (1 + 2 + 2)
    assert [t.cold is not None for t in timings] == [False, True, False, False, False, False]
    for timing in timings:
        metrics = describe(timing, pair, "numpy")["metrics"]
        whole = next(t for t in timings if t.cell.full and t.cell.tokens == timing.cell.tokens)
        assert metrics["full_ttft_s"] == whole.requests[0].ttft_s
        assert metrics["full_runs"] == 1
        assert len(timing.requests) == (1 if timing.cell.full else 2)
        assert (timing.watched is None) == timing.cell.full
    assert [t.metrics()["density"] for t in timings[-2:]] == [None, 1.0]  # so short that no block is left out
    config = config_of(timings[-1].cell, pair, "numpy")
    assert (config["attention"], config["density"], config["alpha"]) == ("flashprefill", 0.3, None)
    assert config_of(timings[0].cell, pair, "numpy")["drafter"] is None


def test_a_cell_that_fails_says_why_and_the_others_go_on(
    maker: PromptMaker, pair: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bench.measure

    def short_of_memory(pipeline, prompt, options):  # type: ignore[no-untyped-def]
        if options.compress == "off":
            raise DeviceError("the GPU's memory is full")
        if options.keep_ratio == 0.01:
            raise PromptError("the budget is 1 GiB; lower --keep-ratio")
        return real(pipeline, prompt, options)

    monkeypatch.setattr(bench, "measure", short_of_memory)
    settings = [RunOptions(keep_ratio=keep, max_new_tokens=1) for keep in (0.3, 0.01)]
    full, good, bad = Bench(pair, maker, 1).run([300], settings)
    assert full.error == "the GPU's memory is full"
    assert good.error is None
    assert good.metrics()["ttft_s"] > 0
    assert good.metrics()["full_ttft_s"] is None
    assert bad.error == "the budget is 1 GiB; lower --keep-ratio"
    assert describe(bad, pair, "numpy")["samples"] == []


@pytest.fixture
def repeated(maker: PromptMaker, pair: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request stands for all: how many there are, and of what length, does not depend on what they answer."""
    one = measure(pair, maker.make(120), RunOptions(compress="off", max_new_tokens=1))
    monkeypatch.setattr(bench, "measure", lambda *_: one)


def test_full_prefills_end_when_they_have_taken_long_enough(maker: PromptMaker, pair: Pipeline, repeated) -> None:
    settings = [RunOptions(keep_ratio=0.5, max_new_tokens=1)]
    for limit, runs in ((0.0, 1), (60.0, 3)):
        timings = Bench(pair, maker, 1, 3, full_seconds=limit).run([120], settings)
        assert [len(timing.requests) for timing in timings] == [runs, 1]


def test_before_a_full_prefill_by_several_gpus_comes_one_as_long(maker, pair, repeated, monkeypatch) -> None:
    settings = [RunOptions(keep_ratio=0.5, max_new_tokens=1)]
    monkeypatch.setattr(bench, "WARM_TOKENS", 100)

    def asked() -> list[int]:
        made: list[int] = []

        class Maker:
            def make(self, tokens: int, seed: int | None = None) -> Prompt:
                if seed is not None:  # asked for to be timed
                    made.append(tokens)
                return maker.make(tokens, seed or 0)

        list(Bench(pair, Maker(), 1, 1).run([120, 240], settings, fresh=False))  # type: ignore[arg-type]
        return made

    assert asked() == [100, 120, 120, 120, 240, 240, 240]
    monkeypatch.setattr(bench, "SharedModel", type(pair.target.model))
    assert asked() == [120, 120, 120, 120, 240, 240, 240, 240]


def test_without_full_prefills_the_compressed_requests_stand_alone(maker: PromptMaker, pair: Pipeline) -> None:
    asked = RunOptions(keep_ratio=0.4, max_new_tokens=2)
    timings = list(Bench(pair, maker, repeats=1, full_repeats=0).run([200], [asked]))
    assert [timing.cell.full for timing in timings] == [False]
    metrics = timings[0].metrics()
    assert metrics["ttft_s"] > 0
    assert (metrics["full_ttft_s"], metrics["full_runs"]) == (None, 0)
    ended = command("-p", "200", "--keep-ratio", "0.4", "--full-repeats", "0")
    assert ended.exit_code == 0, ended.output
    assert "everything" not in ended.output
    assert "measured to pay" not in ended.output


def test_memory_is_watched_while_something_runs() -> None:
    with watched() as seen:
        until = time.monotonic() + 30
        while not seen and time.monotonic() < until:  # on a busy machine the first look may be late
            time.sleep(0.01)
        pages = mmap.mmap(-1, 60 << 20)  # not np.ones: malloc may give it memory that an earlier test touched and freed
        np.frombuffer(pages, np.uint8)[:] = 1
    assert len(seen) >= 2
    assert seen[-1][1] - seen[0][1] > len(pages) // 2
    assert [t for t, _ in seen] == sorted(t for t, _ in seen)


def command(*arguments: str):  # type: ignore[no-untyped-def]
    return invoke(["bench", "ttft", "--device", "cpu", "-r", "1", "-n", "2", *arguments])


def test_the_command_records_resumes_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("--synthetic-target", "tiny-qwen35", "--synthetic-drafter", "tiny-qwen3")
    given = (*small, "-p", "305,320", "--keep-ratio", "1.0,0.5,0.4", "--record", str(tmp_path))
    done = command(*given, "--plots", str(tmp_path / "plots"), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    keeps = [(row["prompt_tokens"], row["keep_ratio"]) for row in found["tests"]]
    assert keeps == [(n, keep) for n in (305, 320) for keep in (1.0, 0.5, 0.4)]
    assert all(row["samples"] == [row["ttft_s"]] for row in found["tests"])
    assert {even["keep_ratio"] for even in found["break_even"]} == {0.4, 0.5}
    assert all(Path(picture).read_bytes().startswith(b"\x89PNG") for picture in found["pictures"])
    (file,) = tmp_path.glob("*/ttft.jsonl")
    assert len(file.read_text().splitlines()) == 6
    assert len((file.parent / "ttft_memory.jsonl").read_text().splitlines()) == 4

    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:4]) + "\n")
    again = command(*given, "--resume", "-o", "csv")
    assert len(file.read_text().splitlines()) == 6
    rows = list(csv.DictReader(io.StringIO(again.stdout)))
    assert [float(row["ttft_s"]) for row in rows[:4]] == [row["ttft_s"] for row in found["tests"][:4]]
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("everything is known"))
    table = command(*given, "--resume", "-o", "md").stdout.splitlines()
    assert len({line.count("|") for line in table if line.startswith("|")}) == 1
    assert any("measured" in line for line in table)
    assert len(requests_of(json.loads(lines[1]))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--keep-ratio", "few"), "numbers"),
        (("--keep-ratio", "1"), "add one below 1"),
        (("--keep-ratio", "2"), "--keep-ratio must be at most 1, not 2.0"),
        (("--scorer", "tial"), "did you mean 'tail'"),
        (("--selector", "top_chunk"), "did you mean 'top_chunks'"),
        (("--sparse", "density:0"), "density"),
        (("-p", "10"), "; choose more"),
        (("-p", "0"), "at least 1"),
        (("-n", "200000"), "leaves none for a prompt"),
        (("--resume",), "--record"),
        (("--kv", "q9"), "q4_0"),
        (("--target", "a.gguf", "--synthetic-target", "qwen3.6-27b"), "exclude each other"),
        (("--synthetic-drafter", "qwen3-0.6"), "did you mean 'qwen3-0.6b'"),
        (("--vram", "much"), "24g"),
        (("--vram", "none,18g"), "omit it"),
        (("-o", "pdf"), "pdf"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = command(*arguments)
    assert done.exception is not None
    assert message in str(done.exception)
    assert not isinstance(done.exception, SystemExit)


def test_prompts_beyond_the_context_are_told_to_be_cut(monkeypatch: pytest.MonkeyPatch, pair: Pipeline) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(Bench, "run", lambda self, lengths, *rest: asked.append(list(lengths)) or iter(()))
    most = pair.target.model.config.context - 2
    assert f"limited to {most:,} tokens" in command("-p", "1k,512k,1024k").stderr
    assert "cut to" not in command("-p", f"1k,{most}").stderr
    assert asked == [[1024, most]] * 2


def test_one_way_to_attend_is_for_scorers_that_can() -> None:
    from sp.commands.bench.ttft import settings_of
    from sp.scoring.sparse import Sparse

    made = settings_of(
        (0.1,),
        "tail,random",
        "top_chunks",
        [Sparse(x) for x in ("density:0.05", "density:0.1", "sqrt:8")],
        RunOptions(),
    )
    assert [type(options.scorer).__name__ for options in made] == [*["TailScorer"] * 3, "RandomScorer"]
    ways = [attending(drafting(options.scorer)) for options in made]
    assert ways == ["density 0.05", "density 0.1", "blocks sqrt:8", ""]


def multiplying(loaded: Loaded, made_in: Arithmetic) -> Loaded:
    """The same model, said to multiply so."""
    model = copy.copy(loaded.model)
    model.arithmetic = made_in
    return replace(loaded, model=model)


def test_a_cell_is_known_by_what_was_asked(pair: Pipeline) -> None:
    assert pair.drafter is not None
    other = replace(pair, drafter=replace(pair.drafter, path=Path("x.gguf")))
    cell = RequestCell(300, RunOptions(compress="always"))
    assert config_of(cell, pair, "numpy") != config_of(cell, other, "numpy")
    asked = replace(pair, drafter=replace(pair.drafter, requested_rope=RopeScaling("yarn", 4.0)))
    assert config_of(cell, asked, "numpy") == config_of(cell, pair, "numpy") | {"drafter_rope": "yarn:4"}
    int8 = Arithmetic(Math.INT8, Math.INT8, 7, 9)
    mixed = replace(pair, drafter=multiplying(pair.drafter, int8))
    assert config_of(cell, mixed, "sm_90a") == config_of(cell, pair, "sm_90a") | {"drafter_math": "int8"}
    both = replace(mixed, target=multiplying(pair.target, replace(int8, asked="auto")))
    known = {"math": "int8", "asked_math": "auto", "drafter_math": "int8"}
    assert config_of(cell, both, "sm_90a") == config_of(cell, pair, "sm_90a") | known
    scores = replace(both, drafter=multiplying(pair.drafter, Arithmetic("auto", attention=Math.INT8)))
    attends = {"drafter_math": "int8", "drafter_products": "bf16", "drafter_asked_math": "auto"}
    known = {"math": "int8", "asked_math": "auto"}
    assert config_of(cell, scores, "sm_90a") == config_of(cell, pair, "sm_90a") | known | attends
    whole = RequestCell(300, RunOptions(compress="off"))
    assert config_of(whole, mixed, "sm_90a") == config_of(whole, pair, "sm_90a"), "the target's arithmetic alone"
    assert config_of(whole, asked, "numpy") == config_of(whole, pair, "numpy"), "nobody drafts"


def test_a_shape_is_known_however_its_positions_are_scaled() -> None:
    config = find_shape("qwen3-0.6b").config
    assert shape_name(RopeScaling("yarn", 4.0).applied(config)) == "qwen3-0.6b"
    assert shape_name(replace(config, rope=replace(config.rope, base=1e5))) is None


def test_density_asked_for_and_read_stand_apart() -> None:
    config = {"prompt_tokens": 8, "keep_ratio": 0.5, "scorer": "tail", "alpha": None, "density": 0.3, "vram": None}
    metrics = {
        "ttft_s": 1.0,
        "full_ttft_s": 2.0,
        "density": 0.45,
        "stages": {"score": 0.5, "onload target": 0.125, "fresh": 0.25},
        "error": None,
    }
    heads, cells, _ = cells_of([row_of({"config": config, "metrics": metrics, "samples": [1.0]})])
    shown = dict(zip(heads, cells[0], strict=True))
    assert (shown["scorer"], shown["density"], shown["against full"]) == ("tail density 0.3", "45.0%", "2.00x")
    assert [shown[f"{name} (ms)"] for name in ("score", "onload", "other")] == ["500.0", "125.0", "250.0"]


def test_tables_and_pictures_know_the_stages_there_are(maker: PromptMaker, pair: Pipeline) -> None:
    stages = measure(pair, maker.make(300), RunOptions(keep_ratio=0.4, compress="always", max_new_tokens=2)).stages
    there = {*stages, "onload target"}  # which only a budget of device memory brings
    assert {stage for group in GROUPS.values() for stage in group} | {"other"} == there
    assert set(STAGE_COLOURS) == there


def test_moves_and_the_limit_are_drawn(tmp_path: Path) -> None:
    config = {"prompt_tokens": 8, "keep_ratio": 0.5, "scorer": "tail", "alpha": 0.1, "density": None, "vram": "18g"}
    moves = [{"kind": kind, "name": "target", "nbytes": 2 << 30, "at": at, "seconds": 0.1}
             for kind, at in (("offload", 0.2), ("onload", 0.8))]  # fmt: skip
    metrics = {"ttft_s": 1.5, "stages": {"score": 0.7, "target prefill": 0.8}, "peak_bytes": 17 << 30, "moves": moves}
    record = {"config": config, "metrics": metrics, "samples": [(0.0, 16 << 30), (0.5, 17 << 30), (2.0, 9 << 30)]}
    plain = {**record, "metrics": {**metrics, "moves": []}}
    drawn = [draw_memory([r], tmp_path / f"{i}.png").read_bytes() for i, r in enumerate((record, plain))]
    assert drawn[0] != drawn[1]
    with pytest.raises(ConfigError, match="--plots"):
        draw_memory([{**record, "samples": []}], tmp_path / "none.png")
