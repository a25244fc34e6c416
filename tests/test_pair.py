"""The embedded pair: its files, and that it truly retrieves (a few prompts on a CPU)."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from embedded_pair import known_task

import sp
from sp.evals import Example
from sp.evals.matches import score_answer
from sp.evals.run import counter
from sp.gguf import GGUFFile
from sp.session import Pipeline, RunOptions

ASSETS = Path(str(files("sp") / "assets"))
ROLES = ("drafter", "target")


def test_files_fit_and_the_target_is_much_heavier() -> None:
    sizes, weights = {}, {}
    for role in ROLES:
        with GGUFFile.open(ASSETS / f"{role}.gguf") as file:
            sizes[role] = file.nbytes
            weights[role] = sum(
                int(np.prod(t.shape))
                for name, t in file.tensors.items()
                if len(t.shape) == 2 and name.startswith("blk.") and "conv" not in name
            )
            assert file.architecture in ("qwen3", "qwen35")
            assert {t.type_name for t in file.tensors.values()} in (
                [{"F32", "Q8_0"}] if role == "drafter" else [{"F32", "Q4_K", "Q6_K"}, {"F32", "Q8_0"}]
            )
    assert sum(sizes.values()) < 40_000_000
    assert weights["target"] >= 5 * weights["drafter"], weights


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return sp.load(device="cpu")


def fresh(pipeline: Pipeline, count: int, size: int) -> list[Example]:
    """Prompts of so many tokens that no training saw."""
    task, tokens = known_task(), counter(pipeline.target.tokenizer)
    return [task.example(100 + index, size, tokens) for index in range(count)]


@pytest.mark.slow
def test_the_target_answers_fresh_prompts(pipeline: Pipeline) -> None:
    right = 0
    for example in fresh(pipeline, 4, 450):
        options = RunOptions(compress="off", max_new_tokens=example.max_new_tokens)
        answer = pipeline.run(example.prompt(pipeline.target.template), options, full=False).answer
        right += score_answer(answer.text, example.answers, example.match) == 1
    assert right >= 3, "measured accuracy is above 0.9; two misses in four would be a broken file"


def test_the_drafter_looks_at_the_needle(pipeline: Pipeline) -> None:
    """A fifth of the prompt by the scores of `tail` holds the evidence, which chance seldom keeps."""
    whole = 0
    for example in fresh(pipeline, 6, 1000):
        prompt = pipeline.tokenise(example.prompt(pipeline.target.template))
        options = RunOptions(0.2)
        _, selection = pipeline.select(pipeline.score(prompt, options), prompt, options)
        whole += bool(selection.selected[prompt.mask("needle")].all())
    assert whole >= 4, "chance keeps about one in five"


def test_the_sample_document_holds_its_needle_once(pipeline: Pipeline) -> None:
    meta = json.loads((ASSETS / "sample.json").read_text())
    document = (ASSETS / "sample.txt").read_text()
    assert document.count(meta["needle"]) == 1
    for answer in meta["answers"]:
        assert document.count(answer) == 1
        assert answer in meta["needle"]
        assert answer not in meta["question"]
    tokens = len(pipeline.target.tokenizer.encode(document + "\n\n" + meta["question"]).ids)
    assert 7900 <= tokens <= 8190
    assert document.index(meta["needle"]) > len(document) / 2
