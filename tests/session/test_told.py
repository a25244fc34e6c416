"""What a run says of positions that its models were not trained for, and of RoPE that is scaled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from retriever_files import TextTask, text_task

from sp.errors import SpWarning
from sp.models import RopeScaling
from sp.models.synthetic.retriever import write_retriever
from sp.ops.rope import LinearScaling, YarnScaling
from sp.prompt import Prompt
from sp.scoring import SCORERS
from sp.session import Loaded, Pipeline, RunOptions, load, synthetic
from sp.session.report import extrapolated, scaled
from sp.studies.pages.run_report import summary

YARN = RopeScaling("yarn", 4.0)
OPTIONS = RunOptions(keep_ratio=0.3, compress="always", max_new_tokens=2)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that was made for 512 positions."""
    return write_retriever(tmp_path_factory.mktemp("short") / "short.gguf", "retriever-qwen3", seed=11, context=512)


@pytest.fixture(scope="module")
def target(retriever_target: Path) -> Loaded:
    return load(retriever_target, device="cpu")


@pytest.fixture(scope="module")
def task() -> TextTask:
    return text_task(1500, needles=4, seed=4)


def told(pair: Pipeline, task: TextTask, **changes: object) -> list[str]:
    prompt = Prompt.from_document(task.document, task.question, pair.target.template)
    result = pair.run(prompt, replace(OPTIONS, **changes), full=False)  # type: ignore[arg-type]
    lines = summary(result, {})["positions"]
    assert result.drafted is None or len(result.drafted) > 1024
    return list(lines)


def test_a_drafter_beyond_its_window_is_scaled_and_says_so(short: Path, target: Loaded, task: TextTask) -> None:
    drafter = load(short, extrapolate=True, device="cpu")
    assert told(Pipeline(target, drafter), task) == [
        "drafter: RoPE scaled by YaRN, 4 x 512 positions, as the prompt needs"
    ]
    assert drafter.model.config.rope.scaling is None


@pytest.mark.parametrize(("asked", "window"), [(RopeScaling("none"), 512), (RopeScaling("yarn", 2.0), 1024)])
def test_one_that_is_asked_to_extrapolate_says_so_and_what_helps(
    short: Path, target: Loaded, task: TextTask, asked: RopeScaling, window: int
) -> None:
    drafter = load(short, extrapolate=True, device="cpu", rope=asked)
    with pytest.warns(SpWarning, match=rf"short.gguf reads beyond its window of {window:,} tokens.*; omit --dr"):
        _, line = told(Pipeline(target, drafter), task)
    assert line.startswith(f"drafter: trained to {window:,} positions, the prompt has 1,")
    assert " x as far, extrapolated; --drafter-rope yarn:4 would scale RoPE instead" in line


def test_a_drafter_that_is_scaled_says_so_alone(short: Path, target: Loaded, task: TextTask) -> None:
    drafter = load(short, extrapolate=True, device="cpu", rope=YARN)
    assert drafter.trained == 2048
    assert told(Pipeline(target, drafter), task) == ["drafter: RoPE scaled by YaRN, 4 x 512 positions, as requested"]


def test_nothing_is_said_where_nothing_is_beyond(
    short: Path, target: Loaded, retriever_drafter: Path, task: TextTask
) -> None:
    assert told(Pipeline(target, load(retriever_drafter, extrapolate=True, device="cpu")), task) == []
    drafter = load(short, extrapolate=True, device="cpu")
    assert told(Pipeline(target, drafter), task, scorer=SCORERS.build("bm25")) == [], "no model reads"
    assert told(Pipeline(target, drafter), task, compress="off") == []


def test_the_model_that_reads_is_the_one_that_is_told_of(short: Path, target: Loaded, task: TextTask) -> None:
    drafter = load(short, extrapolate=True, device="cpu")
    scorer = SCORERS.build("target_attention")
    assert told(Pipeline(target, drafter), task, scorer=scorer) == []
    with pytest.warns(SpWarning, match="target target.gguf reads beyond its window of 1,000 tokens, extrapolated$"):
        (line,) = told(Pipeline(replace(target, trained=1000), drafter), task, scorer=scorer)
    assert line.startswith("target: trained to 1,000 positions")
    assert "--target-rope yarn:2" in line


class Learned:
    def scale(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        return frequencies


@pytest.mark.parametrize(
    ("scaling", "asked", "want"),
    [
        (None, None, None),
        (None, RopeScaling("none"), "RoPE not scaled, as requested"),
        (LinearScaling(2.0), RopeScaling("linear", 2.0), "RoPE scaled linearly by 2, as requested"),
        (LinearScaling(2.5), None, "RoPE scaled linearly by 2.5, as its file says"),
        (YarnScaling(4.0, 32768), None, "RoPE scaled by YaRN, 4 x 32,768 positions, as its file says"),
        (Learned(), None, "RoPE scaled by a tensor, as its file says"),
    ],
)
def test_who_wants_which_scaling(scaling: object, asked: RopeScaling | None, want: str | None, short: Path) -> None:
    loaded = load(short, device="cpu")
    rope = replace(loaded.model.config.rope, scaling=scaling)  # type: ignore[arg-type]
    loaded.model.config = replace(loaded.model.config, rope=rope)
    loaded = replace(loaded, requested_rope=asked, trained=131072)
    assert scaled(loaded) == want
    line = extrapolated("drafter", loaded, 200_000)
    assert line is not None
    ends = {
        YarnScaling: "; --drafter-rope yarn:8 would scale RoPE instead",
        Learned: ", extrapolated, for a tensor of its file scales RoPE",
        LinearScaling: ", extrapolated, for its file scales RoPE linearly",
    }
    if asked is not None and asked.kind == "linear":  # to twice the window of the file
        ends = {LinearScaling: "; --drafter-rope yarn:4 would scale RoPE instead"}
    assert line.endswith(ends.get(type(scaling), "; --drafter-rope yarn:2 would scale RoPE instead"))
    assert extrapolated("drafter", loaded, 131072) is None


def test_the_trace_has_the_numbers(short: Path) -> None:
    facts = load(short, device="cpu", rope=YARN).describe()["rope"]
    assert isinstance(facts, dict)
    wanted = {"scaling": "yarn", "factor": 4.0, "original_context": 512, "positions": 2048, "asked": "yarn:4"}
    assert wanted.items() <= facts.items()
    assert facts["magnitude"] == pytest.approx(1.1386, abs=1e-4)


def test_random_weights_are_scaled_too() -> None:
    loaded = synthetic("tiny-qwen3", "bf16", device="cpu", rope=YARN)
    assert loaded.trained == loaded.model.config.context == 4 * 40960
    assert loaded.model.config.rope.scaling == YarnScaling(4.0, 40960)
    longer = synthetic("tiny-qwen3", "bf16", extrapolate=True, device="cpu", rope=YARN)
    assert (longer.trained, longer.model.config.context) == (4 * 40960, 1 << 20)
