"""Runs whose drafter reads on several GPUs: threads of the host here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from command_line import invoke

from sp.errors import ConfigError
from sp.models import ContextParallel
from sp.parallel.host import HostGroup
from sp.prompt import Prompt
from sp.session import Pipeline, RunOptions, embedded, synthetic
from sp.session.loaded import replicated
from sp.studies.sample import sample


@pytest.fixture(scope="module")
def alone() -> Pipeline:
    """The drafter is its own target, which reads four times faster."""
    return Pipeline.open(embedded("drafter"), embedded("drafter"), device="cpu")


def on_gpus(pipeline: Pipeline, count: int) -> Pipeline:
    assert pipeline.drafter is not None
    return replace(pipeline, gpus=ContextParallel(HostGroup(count), [pipeline.drafter.model] * count))


def prompt(pipeline: Pipeline, characters: int) -> Prompt:
    document, example = sample()
    return Prompt.from_document(document[:characters], example.question, pipeline.target.template)


def options(scorer: str = "tail") -> RunOptions:
    return RunOptions(keep_ratio=0.2, scorer=scorer, compress="always", max_new_tokens=1)


def test_a_run_keeps_what_it_keeps_on_one_gpu_and_says_who_read(alone: Pipeline) -> None:
    asked = prompt(alone, 3000)
    want, got = (each.run(asked, options(), full=False) for each in (alone, on_gpus(alone, 2)))
    assert len(want.prompt) > 1024
    assert got.selection.indices.tolist() == want.selection.indices.tolist()
    assert got.answer.tokens == want.answer.tokens
    assert "cards" not in want.answer.trace.facts
    assert got.answer.trace.facts["cards"] == ["drafter: read by 2 GPUs together"]


@pytest.mark.parametrize("ahead", [False, True])
def test_fixed_text_is_kept_on_top_of_the_ratio_and_read_whole_alone(
    alone: Pipeline, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pipeline, "overlaps_tokenising", lambda self, options: ahead)
    document, example = sample()
    question, pipeline = f"{document[4000:6400]} {example.question}", on_gpus(alone, 2)
    found = pipeline.run(
        Prompt.from_document(document[:1800], question, pipeline.target.template), options(), full=False
    )
    protected = found.prompt.mask("protected")
    assert protected.sum() > 0.5 * len(protected)
    assert found.selection.selected[protected].all()
    assert 0 < found.selection.selected[~protected].sum() <= 0.2 * (~protected).sum() + 1
    whole = pipeline.run(Prompt.from_document("a", question, pipeline.target.template), options(), full=False)
    assert not whole.decision.activated
    assert whole.importance is None
    assert whole.kept_tokens == len(whole.prompt)


@pytest.mark.parametrize(("scorer", "characters"), [("lookahead", 3500), ("tail", 1500)])
def test_who_reads_alone_is_told(alone: Pipeline, scorer: str, characters: int) -> None:
    found = on_gpus(alone, 4).run(prompt(alone, characters), options(scorer), full=False)
    (line,) = found.answer.trace.facts["cards"]
    assert line.startswith("drafter: read by the first of 4 GPUs alone, ")


def test_nothing_is_said_where_no_model_reads(alone: Pipeline) -> None:
    found = on_gpus(alone, 2).run(prompt(alone, 1500), options("random"), full=False)
    assert "cards" not in found.answer.trace.facts


def test_mistakes_are_one_line(alone: Pipeline) -> None:
    with pytest.raises(ConfigError, match=r"omit it, or --gpus and --target-gpus$"):
        Pipeline.assemble(lambda _: alone.target, lambda _: alone.target, device="cpu", vram=1 << 30, gpus=2)
    recurrent = synthetic("tiny-qwen35", device="cpu")
    with pytest.raises(ConfigError, match=r"tiny-qwen35.* has recurrent layers"):
        replicated(recurrent, HostGroup(2), lambda _: recurrent)
    done = invoke(["run", "--device", "cpu", "--gpus", "2"])
    assert str(done.exception) == "--gpus needs GPUs; omit it with --device cpu"


@pytest.mark.parametrize("option", ["--gpus", "--target-gpus"])
def test_a_machine_without_gpus_is_named_as_the_cause(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked for the CPU, so nothing may be said of --device cpu."""
    monkeypatch.setattr("sp.kernels.device._has_driver", lambda: False)
    told = f"{option} is 2, but this machine has no GPU that kernels run on; omit {option}, or see sp doctor"
    for command in ("run", "serve"):
        assert str(invoke([command, option, "2"]).exception) == told
    if option == "--gpus":
        embedded_drafter = str(embedded("drafter"))
        for command in (["model", embedded_drafter], ["drafter", "-m", embedded_drafter]):
            assert str(invoke(["bench", *command, option, "2"]).exception) == told
