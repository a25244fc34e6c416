"""A target that reads its prompts sparsely: right answers, densities that are told, and a decision that knows."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markup_read import Read
from retriever_files import text_task
from rich.console import Console

from sp.commands.common import read_settings
from sp.errors import ConfigError
from sp.models.synthetic.shapes import find_shape
from sp.ops.skip_softmax import SkipSoftmax
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.prompt import Prompt
from sp.scoring import SCORERS
from sp.session import Pipeline, RunOptions, load
from sp.session.decision import speedup
from sp.studies.pages.run_report import print_outcome, summary, write_files

V1 = FlashPrefill(0.05, sink=1, window=1)
SKIP = SkipSoftmax(0.1)
V2 = replace(V1, share="group", visibility="first", mean_correction=True)


@pytest.fixture(scope="module")
def pair(retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    return Pipeline(load(retriever_target, device="cpu"), load(retriever_drafter, extrapolate=True, device="cpu"))


@pytest.mark.parametrize(("sparse", "kv", "rotate"), [(V1, "f32", False), (V2, "f16", True), (SKIP, "q8_0", None)])
def test_answers_are_right_and_densities_told(pair, sparse, kv, rotate) -> None:
    task = text_task(2000, needles=8, seed=4)
    prompt = Prompt.from_document(task.document, task.question, pair.target.template, needle=task.needle)
    options = RunOptions(
        keep_ratio=0.5,
        compress="always",
        kv=kv,
        rotate=rotate,
        target_sparse=sparse,
        max_new_tokens=8,
        scorer=SCORERS.build("tail", {"sparse": "alpha:0.05"}),
    )
    result = pair.run(prompt, options, full=True)
    assert result.full is not None
    assert result.answer.text == result.full.text == task.answer
    told = summary(result, {})
    assert told["target_density"] == np.mean(result.answer.densities) < 1
    assert told["drafter_density"] == np.mean(result.importance.densities) < 1
    dense = summary(pair.run(prompt, replace(options, target_sparse=None, compress="off")), {})
    assert (dense["target_density"], dense["drafter_density"], dense["full_target_density"]) == (1, None, None)


def test_the_density_of_the_full_prefill_is_told_beside_that_of_the_compressed_one(pair, tmp_path) -> None:
    task = text_task(2000, needles=8, seed=4)
    prompt = Prompt.from_document(task.document, task.question, pair.target.template)
    options = RunOptions(keep_ratio=0.5, compress="always", target_sparse=V1, max_new_tokens=2, scorer="lexical")
    result = pair.run(prompt, options, full=True)
    full = float(np.mean(result.full.densities))
    assert full != np.mean(result.answer.densities)
    files = write_files(result, pair, options, tmp_path, {"sp": "0"})
    report = summary(result, files)
    assert report["full_target_density"] == full
    assert json.loads(files["trace"].read_text())["full_target_densities"] == list(result.full.densities)
    name, share = "Attention of the target, full prefill", f"sparse, {100 * full:.1f} % of the causal blocks read"
    page = Read(files["report"].read_text()).text
    assert page.partition(name)[2].lstrip().startswith(share)
    printed = Console(file=io.StringIO(), width=200)
    print_outcome(printed, report, result, verbose=True)
    assert f"{name}  {share}" in printed.file.getvalue()
    one = pair.run(prompt, replace(options, compress="off"), full=True)
    print_outcome(printed, summary(one, files), one, verbose=True)
    assert printed.file.getvalue().count(name) == 1  # there is one pass, named once


def test_a_sparse_target_leaves_less_to_gain() -> None:
    target, drafter = find_shape("qwen3.6-27b").config, find_shape("qwen3-0.6b").config
    dense, sparse = (speedup(target, drafter, 131072, 0.05, sparse=one) for one in (None, FlashPrefill(0.1)))
    assert 0.5 * dense < sparse < 0.8 * dense


def test_a_targets_rule_is_told_by_its_options() -> None:
    def rule(*settings: str) -> object:
        return read_settings("tail", "top_chunks", "greedy", settings)["target_sparse"]

    assert rule() is None
    assert rule("target.skip=0.05") == SkipSoftmax(0.05)
    assert rule("target.alpha=0.1", "target.window=2") == FlashPrefill(0.1, window=2)
    with pytest.raises(ConfigError, match="did you mean 'skip'"):
        rule("target.skipp=0.05")
    with pytest.raises(ConfigError, match="belong to different rules"):
        rule("target.alpha=0.1", "target.skip=0.05")
