"""llama and qwen2 on the device besides logits of whole models: as drafters, in trees, as a pair with two paddings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare import nmse
from device_models import FAMILIES, case

from sp.models import prefill
from sp.models.run.tree import TreeReader
from sp.models.synthetic.shapes import ModelShape, find_shape
from sp.models.synthetic.synthetic import synthetic_metadata, write_random
from sp.prompt import Prompt
from sp.scoring import SCORERS, Importance, ScoreRequest
from sp.session import Pipeline, RunOptions, RunResult
from sp.studies.sample import sample

BOUND = 1e-3
N = 2500  # no whole number of pages
LAST_ALONE = ("tiny-gemma3", "tiny-gemma4", "tiny-muse-glimmer")
"""Whose one layer without a window is the last that a scorer reads: it shows its queries and does not attend."""


def score(name: str, device: str, scorer: str, options: dict[str, object]) -> Importance:
    c = case(name)
    model, mask = (c.gpu if device == "cuda" else c.cpu), np.zeros(N, bool)
    mask[-20:] = True
    return SCORERS.build(scorer, options).score(ScoreRequest(model, np.resize(c.ids, N), np.arange(N), mask, mask))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("scorer", "options"),
    [("tail", {}), ("tail", {"rotary": "none"}), ("snapkv", {}), ("self_information", {}), ("mid_layer", {})],
    ids=str,
)
def test_scores_are_those_of_numpy(name, scorer, options, path) -> None:
    got, want = (score(name, device, scorer, options) for device in ("cuda", "cpu"))
    print(f"{name} {scorer} {options}: nmse {nmse(got.scores, want.scores):.1e}")
    assert nmse(got.scores, want.scores) < BOUND


@pytest.mark.parametrize("name", FAMILIES)
def test_alpha_zero_reads_every_block(name, path) -> None:
    dense = score(name, "cuda", "tail", {})
    sparse = score(name, "cuda", "tail", {"sparse": "alpha:0.0"})
    assert set(sparse.densities) == (set() if name.startswith(LAST_ALONE) else {1.0})
    assert nmse(sparse.scores, dense.scores) < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_sparse_reads_what_numpy_reads(name, path) -> None:
    options = {"sparse": "alpha:0.95"}
    got, want = (score(name, device, "tail", options) for device in ("cuda", "cpu"))
    assert min(want.densities, default=0.0) < 0.9
    np.testing.assert_allclose(got.densities, want.densities, atol=0.05)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chain_of_guesses_in_one_pass(name, path) -> None:
    c, start = case(name), 500
    found = []
    for model in (c.gpu, c.cpu):
        store = model.new_cache(start + 16, "f16")
        prefill(model, c.ids[:start], np.arange(start), store)
        reader = TreeReader(model, store, most=16)
        found.append(reader.read_tree(c.ids[start : start + 16], np.arange(16) - 1, start + np.arange(16)).logits)
    assert nmse(*found) < BOUND


def pair(device: str, folder: Path) -> Pipeline:
    """A target and a drafter of one family; the target's vocabulary has more padding, as those of Qwen2.5-32B have."""
    small = find_shape("tiny-qwen2")
    wide = ModelShape("wide", replace(small.config, vocab=small.config.vocab + 128), tied=False, text_tokens=2000)
    paths = []
    for shape, file_type in ((wide, "q4_k_m"), (small, "q8_0")):
        path = folder / f"{shape.name}.gguf"
        if not path.exists():
            write_random(path, synthetic_metadata(shape, file_type), shape.plan(file_type), seed=len(paths))
        paths.append(path)
    return Pipeline.open(*paths, device=device)


def test_a_pair_with_other_padding_keeps_what_it_keeps_on_the_cpu(tmp_path, path) -> None:
    document, example = sample()
    options = RunOptions(keep_ratio=0.3, compress="always", max_new_tokens=4)
    found: list[RunResult] = []
    for device in ("cuda", "cpu"):
        where = pair(device, tmp_path)
        asked = Prompt.from_document(document[:6000], example.question, where.target.template)
        found.append(where.run(asked, options, full=False))
    got, want = found
    assert len(got.selection.selected) == len(want.selection.selected)
    differ = (got.selection.selected ^ want.selection.selected).sum()
    print(f"{differ} of {want.selection.selected.sum()} kept tokens differ")
    assert differ <= 0.2 * want.selection.selected.sum()
