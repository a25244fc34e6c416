"""Scorers whose drafter reads on several GPUs keep what they keep on one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sp.errors import ConfigError
from sp.gguf import GGUFFile, Tokenizer
from sp.models import ContextParallel, load_model
from sp.parallel.host import HostGroup
from sp.scoring import SCORERS, ScoreRequest
from sp.selection.base import SELECTORS, SelectionRequest
from sp.session.loaded import embedded
from sp.studies.sample import sample

N, KEPT = 1300, 0.2


@pytest.fixture(scope="module")
def request_alone() -> ScoreRequest:
    model = load_model(embedded("drafter"))
    ids = np.asarray(Tokenizer.from_gguf(GGUFFile.open(embedded("drafter"))).encode(sample()[0]).ids)
    question = np.arange(N) >= N - 20
    model.config = replace(model.config, context=max(N, model.config.context))
    return ScoreRequest(model, np.resize(ids, N), np.arange(N), question, ~question)


@pytest.mark.parametrize("options", [{"rotary": "none"}, {"sparse": "alpha:0.5"}])
def test_kept_sets_are_those_of_one_gpu(request_alone, options) -> None:
    scorer, selector = SCORERS.build("tail", options), SELECTORS.build("top_chunks")

    def kept(gpus: ContextParallel | None) -> tuple[list[int], tuple[float, ...]]:
        found = scorer.score(replace(request_alone, gpus=gpus))
        asked = SelectionRequest(found.scores, request_alone.question, KEPT)
        return selector.select(asked).indices.tolist(), found.densities

    want, density = kept(None)
    assert 200 < len(want) <= 20 + np.ceil(KEPT * (N - 20))
    assert (not density) == ("sparse" not in options)
    for count in (2, 4):
        got, densities = kept(ContextParallel(HostGroup(count), [request_alone.model] * count))
        assert got == want
        assert densities == pytest.approx(density, rel=1e-3)


def test_the_first_gpu_holds_the_model_that_reads(request_alone) -> None:
    other = load_model(embedded("drafter"))
    with pytest.raises(ConfigError, match="first of the GPUs"):
        replace(request_alone, gpus=ContextParallel(HostGroup(2), [other] * 2))


@pytest.mark.parametrize(
    ("name", "options", "known"),
    [
        ("tail", {}, True),
        ("tail", {"rotary": "none"}, False),
        ("tail", {"pooling": "max", "order": "pool,heads,queries"}, False),
        ("entropy_weight", {}, False),
    ],
)
def test_only_what_loads_no_kernels_of_others_is_done_before(request_alone, name, options, known) -> None:
    """The second reading of a kind; a kernel of CuPy's that one GPU loads would hold up the others for ever."""
    group = HostGroup(2)
    SCORERS.build(name, options).score(replace(request_alone, gpus=ContextParallel(group, [request_alone.model] * 2)))
    assert (len(group.completed) == 1) == known
