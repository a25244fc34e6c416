"""Runs whose target GPUs share, threads of the host here: answers, who held what, refusals, failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from command_line import invoke

from sp.bench.ttft import measure, pair_config
from sp.errors import ConfigError, PromptError
from sp.models import ContextParallel
from sp.models.shards.shards import SharedModel, stream
from sp.ops.byte_rows.rows import ROUNDED_TOKENS
from sp.parallel.host import HostGroup
from sp.prompt import Prompt
from sp.session import Pipeline, RunOptions, embedded, load
from sp.session.loaded import sharing
from sp.studies.sample import sample

LINE = "target: shared by 2 GPUs, 13.5 + 13.5 MB of weights"


@pytest.fixture(scope="module")
def alone() -> Pipeline:
    return Pipeline.open(device="cpu").with_speculator(embedded("draft"))


@pytest.fixture(scope="module")
def shared(alone: Pipeline) -> Pipeline:
    target = load(embedded("target"), device="cpu", group=HostGroup(2))
    return Pipeline(target, alone.drafter).with_speculator(embedded("draft"))


def prompt(pipeline: Pipeline, characters: int = 400) -> Prompt:
    document, example = sample()
    return Prompt.from_document(document[:characters], example.question, pipeline.target.template)


def options(**more: object) -> RunOptions:
    return RunOptions(**({"keep_ratio": 0.4, "compress": "always", "max_new_tokens": 6} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"decode": "sample[temperature=0.7]", "seed": 5},
        {"decode": "dflash"},
        {"decode": "ddtree[budget=9]"},
        {"mapping": "text_rejoin", "positions": "contiguous"},
        {"kv": "q4_0"},
        {"state_gaps": "reset"},
        {"scorer": "random"},
    ],
    ids=str,
)
def test_an_answer_is_that_of_one_gpu(alone: Pipeline, shared: Pipeline, more: dict[str, object]) -> None:
    asked = prompt(alone)
    want, got = (each.run(asked, options(**more), full=False) for each in (alone, shared))
    assert got.selection is not None
    assert want.selection is not None
    assert got.selection.indices.tolist() == want.selection.indices.tolist()
    assert got.answer.tokens == want.answer.tokens
    assert got.answer.passes == want.answer.passes
    assert got.answer.trace.facts["cards"] == [LINE]
    assert "cards" not in want.answer.trace.facts


def test_full_prefills_and_drafters_on_gpus(alone: Pipeline, shared: Pipeline) -> None:
    assert shared.drafter is not None
    both = replace(shared, gpus=ContextParallel(HostGroup(2), [shared.drafter.model] * 2))
    asked = prompt(alone, 1500)
    want, got = (each.run(asked, options(), full=True) for each in (alone, both))
    assert want.full is not None
    assert got.full is not None
    assert got.full.tokens == want.full.tokens
    assert got.answer.tokens == want.answer.tokens
    assert got.answer.trace.facts["cards"] == ["drafter: read by 2 GPUs together", LINE]
    whole = both.run(asked, options(compress="off"), full=False)
    assert whole.answer.tokens == want.full.tokens
    assert whole.answer.trace.facts["cards"] == [LINE]


@pytest.fixture(scope="module")
def answered(alone: Pipeline) -> tuple[int, ...]:
    """The answer of one GPU by default."""
    return alone.run(prompt(alone), options(), full=False).answer.tokens


def test_an_answer_that_is_ended_early_is_followed_by_others(shared: Pipeline, answered) -> None:
    asked, seen = prompt(shared), list[int]()
    found = shared.run(asked, options(), full=False, on_token=lambda token: seen.append(token) or len(seen) == 3)
    assert len(found.answer.tokens) == 3
    got = shared.run(asked, options(), full=False)
    assert got.answer.tokens == answered
    assert list(got.answer.tokens[:3]) == seen


def test_eight_bits(alone: Pipeline) -> None:
    asked = prompt(alone, 3000)
    ways = [load(embedded("target"), device="cpu", group=group, precision="int8") for group in (None, HostGroup(2))]
    how = options(keep_ratio=0.5, scorer="random")  # keeps as many tokens as bytes are worth, and no drafter reads
    want, got = (Pipeline(way, alone.drafter).run(asked, how, full=False) for way in ways)
    assert got.kept_tokens >= ROUNDED_TOKENS
    (line,) = got.answer.trace.facts["math"]
    assert line.startswith("target: int8 for 40 of 70 matrices of layers")  # halves of the others are too narrow
    assert "56 of 70" in want.answer.trace.facts["math"][0]
    assert len(got.answer.tokens) == 6


def test_records_tell_both_numbers_of_gpus(shared: Pipeline) -> None:
    config = pair_config(shared, options(), None, "numpy", True)
    assert (config["cards"], config["target_cards"]) == (1, 2)
    request = measure(shared, prompt(shared), options())
    assert request.ttft_s > request.stages["target prefill"] > 0


def test_refusals_are_one_line(shared: Pipeline) -> None:
    asked = prompt(shared)
    for scorer in ("answer_attention", "target_attention", "leave_one_out"):
        with pytest.raises(ConfigError, match=r"sharded over several GPUs; use --target-gpus 1"):
            shared.run(asked, options(scorer=scorer), full=False)
    with pytest.raises(ConfigError, match=r"2 GPUs share cannot do this, .* leave it on one with --target-gpus 1$"):
        shared.target.model.new_cache(9)
    with pytest.raises(ConfigError, match=r"of a single GPU; omit it, or --gpus and --target-gpus$"):
        sharing(1, 2, "cuda", 1 << 30)
    with pytest.raises(
        ConfigError,
        match=r"3 GPUs cannot share 2 kv heads, .*; 1 or 2 can: --target-gpus says how many share the target$",
    ):
        load(embedded("target"), device="cpu", group=HostGroup(3))
    done = invoke(["run", "--device", "cpu", "--target-gpus", "2"])
    assert str(done.exception) == "--target-gpus needs GPUs; omit it with --device cpu"


def test_a_gpu_that_fails_ends_the_run_and_the_next_one_works(shared: Pipeline, answered, monkeypatch) -> None:
    model = shared.target.model
    assert isinstance(model, SharedModel)
    asked, last, calls = prompt(shared), model.shards.models[1], []
    whole = type(last).head

    def head(self, x, norm=None):
        if self is last:
            calls.append(x)
            if len(calls) == 3:
                raise PromptError("enough")
        return whole(self, x, norm)

    with monkeypatch.context() as patched:
        patched.setattr(type(last), "head", head)
        with pytest.raises(PromptError, match=r"^GPU 1 of 2: enough$"):
            shared.run(asked, options(), full=False)
    assert shared.run(asked, options(), full=False).answer.tokens == answered


def test_gpus_go_no_further_than_asked(shared: Pipeline) -> None:
    model, made = shared.target.model, ([], [])
    assert isinstance(model, SharedModel)

    def work(part):
        for number in range(5):
            made[part.shard.rank].append(number)
            yield number

    pieces = stream(model.shards, work)
    assert [next(pieces), next(pieces)] == [0, 1]
    pieces.close()
    assert made == ([0, 1], [0, 1])
    assert list(stream(model.shards, work)) == [0, 1, 2, 3, 4]
