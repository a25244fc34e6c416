"""Trained scorers on constructed retrievers, and the files their weights lie in."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from retriever_files import token_task
from safetensors.numpy import save_file
from scorer_cases import KEY, ask, silently

from sp.errors import ConfigError
from sp.evals import TASKS
from sp.evals.run import counter
from sp.models import Model, load_model
from sp.prompt.spans import chunk_bounds
from sp.scoring import SCORERS, ScoreRequest
from sp.scoring.attention.heads import model_key
from sp.scoring.trained.attention_features import (
    Asking,
    UnitPool,
    attention_features,
    feature_count,
    line_units,
    with_neighbours,
)
from sp.scoring.trained.base import EMBEDDED_SCORER, SCHEMA, ScorerFile, TrainedScorer
from sp.session.loaded import embedded, load
from sp.session.request import score_request
from sp.studies.training import auc

KINDS = tuple(name for name in SCORERS if issubclass(SCORERS.class_of(name), TrainedScorer))


@pytest.fixture(scope="module")
def drafter(retriever_drafter: Path) -> Model:
    return load_model(retriever_drafter)


def prompt(model: Model, tokens: int, seed: int, behind: int = 0) -> ScoreRequest:
    """A prompt with a needle; so many tokens of noise follow the question."""
    one = silently(ask(model, tokens, seed=seed), progress=None)
    noise, none = np.random.default_rng(seed).integers(0, 256, behind), np.zeros(behind, bool)
    masks = {name: np.append(getattr(one, name), none) for name in ("question", "needle")}
    return replace(one, ids=np.append(one.ids, noise), positions=np.arange(tokens + behind), **masks)


def made(
    model: Model, kind: str, path: Path, options: dict[str, Any], tokens: int = 400, prompts: int = 8, behind: int = 0
) -> float:
    """Train on prompts for a retriever; returns the mean area of others, by a scorer that opens the file."""
    scorer = SCORERS.build(kind)
    assert isinstance(scorer, TrainedScorer)
    learning = scorer.options(options, kind)
    asked = [prompt(model, tokens, seed, behind) for seed in range(prompts)]
    samples = [scorer.sample(one, one.needle.astype(np.float32), learning) for one in asked]
    arrays = scorer.fit(samples, learning, 0, lambda done: None)
    ScorerFile(kind, model_key(model), arrays, vars(learning)).save(path)
    return area(SCORERS.build(kind, {"weights": str(path)}), model, tokens, behind)


def area(scorer: Any, model: Model, tokens: int, behind: int = 0) -> float:
    """Mean over three prompts, of chunks of 8 tokens before the question, of which those with half a needle count."""
    found, whole = [], (tokens - KEY) // 8 * 8
    for seed in (20, 21, 22):
        asked = prompt(model, tokens, seed, behind)
        scores, needle = (values[:whole].reshape(-1, 8) for values in (scorer.score(asked).scores, asked.needle))
        found.append(auc(scores.max(axis=1), needle.sum(axis=1) >= 4))
    return float(np.mean(found))


@pytest.mark.parametrize("behind", [0, 12])
@pytest.mark.parametrize(("kind", "options"), [("probe", {}), ("lines", {"chunk_size": 8})])
def test_a_trained_probe_finds_what_a_retriever_looks_at(kind, options, behind, drafter, tmp_path) -> None:
    """As `tail` does where the prompt ends with the question, and also where it does not, which misleads `tail`."""
    found = made(drafter, kind, tmp_path / "scorer.safetensors", options, behind=behind)
    tail, chance = (area(SCORERS.build(name), drafter, 400, behind) for name in ("tail", "random"))
    print(f"{kind}, {behind} behind: {found:.3f}, tail {tail:.3f}, random {chance:.3f}")
    assert found > 0.95 > 0.8 > chance
    assert found > tail + 0.1 if behind else found >= tail


def test_a_trained_head_beats_chance(drafter, tmp_path) -> None:
    """Behind its first layer the retriever's hidden states hold what came before, which a head compares."""
    options = {"chunk_size": 8, "rank": 64, "depth": 1, "epochs": 3, "batch": 4, "rate": 1e-3}
    found = made(drafter, "cross_attention", tmp_path / "scorer.safetensors", options, tokens=300, prompts=8)
    print(f"cross_attention: {found:.3f}")
    assert found > 0.8


def test_features_are_those_of_the_weights(drafter) -> None:
    """Against attention taken apart by hand: mean and maximum a head over the mean of the document's units, then the
    largest of the means over all heads."""
    from sp.ops.attention.importance import attention_rows
    from sp.scoring.attention.attention import TailScorer

    task = token_task(203, 4, seed=5, key=KEY, value=4)
    asked = np.arange(203) >= 203 - KEY
    request = ScoreRequest(drafter, task.ids, np.arange(203), asked, asked)
    asking = Asking.of(request, 3)
    assert (asking.start, asking.rows, asking.question, asking.tail) == (198, 5, slice(0, 5), slice(2, 5))
    bounds = chunk_bounds(203, 20)
    got, _ = attention_features(request, TailScorer(queries=5), asking, bounds, "post")
    rows: list[np.ndarray] = []
    TailScorer(queries=5).visit_layers(request, lambda layer, q, keys: rows.append(attention_rows(q, keys).copy()))
    want = []
    means: dict[int, list[np.ndarray]] = {0: [], 2: []}
    for weights in rows:
        for first, of_heads in means.items():
            mine = weights[:, first:]
            for pooled in (
                [[mine[h, :, a:b].mean() for a, b in pairwise(bounds)] for h in range(len(mine))],
                [[mine[h, :, a:b].max() for a, b in pairwise(bounds)] for h in range(len(mine))],
            ):
                values = np.array(pooled)
                mean = np.maximum(values[:, 1:9].mean(axis=1, keepdims=True), 1e-4 / 203)
                want += list(np.log(values / mean + 0.01))
            of_heads += want[-2 * len(mine) : -len(mine)]
    want += [np.max(of_heads, axis=0) for of_heads in means.values()]
    count, own = len(want), np.array(want).T
    assert got.shape == (11, count)
    got = with_neighbours(got, 1)
    assert got.shape == (11, 3 * count) == (11, feature_count(drafter.config, "post", 1))
    np.testing.assert_allclose(got[:, count : 2 * count], own, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(got[1:, :count], got[:-1, count : 2 * count])
    np.testing.assert_array_equal(got[:-1, 2 * count :], got[1:, count : 2 * count])


def test_lines_score_alike_within_a_line(drafter, tmp_path) -> None:
    path = tmp_path / "lines.safetensors"
    made(drafter, "lines", path, {"chunk_size": 16}, prompts=2)
    asked = silently(ask(drafter, 300), progress=None)
    text = bytes(10 if i % 23 == 22 or i == 40 else 97 for i in range(300))
    spans = np.stack([np.arange(300), np.arange(1, 301)], 1)
    request = silently(ask(drafter, 300), progress=None, text=text, spans=spans)
    scores = SCORERS.build("lines", {"weights": str(path)}).score(request).scores
    assert not np.array_equal(scores, SCORERS.build("lines", {"weights": str(path)}).score(asked).scores)
    bounds = line_units(request, 16)
    assert {0, 23, 41, 46, 69} <= set(bounds.tolist())  # line ends, of which one falls into a line
    assert np.diff(bounds).max() <= 16
    for low, high in pairwise(bounds):
        if high <= 300 - KEY:
            assert len(set(scores[low:high].tolist())) == 1


@pytest.mark.parametrize("size", [1, 7, 32, 500])
def test_units_tile_and_pools_pool(size: int) -> None:
    rng = np.random.default_rng(size)
    values, bounds = rng.random((3, 130)).astype(np.float32), chunk_bounds(130, size)
    pool = UnitPool.of(bounds, values)
    parts = [values[:, a:b] for a, b in pairwise(bounds)]
    np.testing.assert_allclose(pool.means(values), np.stack([p.mean(axis=1) for p in parts], 1), rtol=1e-5)
    np.testing.assert_array_equal(pool.largest(values), np.stack([p.max(axis=1) for p in parts], 1))


def test_blank_lines_join_the_line_before() -> None:
    text = b"one\n\n\ntwo\nthree"
    spans = np.array(
        [[0, 3], [3, 6], [6, 9], [9, 12], [12, 15]]
    )  # the third token ends with "two", the next begins "\nth"
    nothing = np.zeros(5, bool)
    request = ScoreRequest(None, np.arange(5), np.arange(5), nothing, nothing, text=text, spans=spans)  # type: ignore[arg-type]
    assert line_units(request, 64).tolist() == [0, 2, 4, 5]
    assert line_units(replace(request, spans=None), 64).tolist() == [0, 5]


def weights_for(drafter: Model, made_for: str, path: Path, **changes: Any) -> ScorerFile:
    """A file of ones with the defaults of learning, written to a path."""
    scorer = SCORERS.build(made_for)
    assert isinstance(scorer, TrainedScorer)
    learning = scorer.options({}, made_for)
    arrays = {name: np.ones(shape, np.float32) for name, shape in scorer.shapes(drafter, learning).items()}
    file = ScorerFile(**{
        "kind": made_for, "model": model_key(drafter), "arrays": arrays, "options": vars(learning),
        "made": {"tasks": ["x"]},
    } | changes)  # fmt: skip
    file.save(path)
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_comes_back_as_it_was(kind, drafter, tmp_path) -> None:
    path = tmp_path / "scorer.safetensors"
    wrote = weights_for(drafter, kind, path)
    read = ScorerFile.load(path)
    assert (read.kind, read.model, read.options, read.made) == (wrote.kind, wrote.model, wrote.options, wrote.made)
    assert {name: array.shape for name, array in read.arrays.items()} == {n: a.shape for n, a in wrote.arrays.items()}
    for name, array in read.arrays.items():
        np.testing.assert_array_equal(array, wrote.arrays[name])
    assert list(tmp_path.iterdir()) == [path]
    asked = silently(ask(drafter, 300), progress=None)
    assert np.isfinite(SCORERS.build(kind, {"weights": str(path)}).score(asked).scores).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "qwen3-28-16-0123456789ab"}, "another drafter"),
        ({"kind": "lines"}, "weights of scorer lines, not probe"),
        ({"arrays": {"weight": np.ones(3, np.float32)}}, "shapes"),
        ({"arrays": {"weight": np.full(32, np.nan, np.float32)}}, "not finite"),
        ({"options": {"chunk_size": 0}}, "chunk_size must"),
        ({"options": {"chunk": 3}}, "unknown option"),
        ({"options": {"neighbours": 10**9}}, "neighbours must"),
        ({"options": {"l2": "much"}}, "l2 must"),
    ],
    ids=str,
)
def test_files_that_do_not_fit_are_refused_in_one_line(changes, message, drafter, tmp_path) -> None:
    path = tmp_path / "scorer.safetensors"
    weights_for(drafter, "probe", path, **changes)
    with pytest.raises(ConfigError, match=message) as caught:
        SCORERS.build("probe", {"weights": str(path)}).score(silently(ask(drafter, 200, 4), progress=None))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff" * 8, b"\x02" + bytes(7) + b"{}", bytes(8), b"GGUF" + bytes(64)]
)
def test_what_is_no_file_of_weights_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "scorer.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="no trained scorer") as caught:
        ScorerFile.load(path)
    assert "\n" not in str(caught.value)


def test_missing_folders_strange_metadata_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"weight": np.ones(1, np.float32)}
    for number, metadata in enumerate([
        None, {"schema": "sp-scorer/9"}, {"schema": SCHEMA}, {"schema": SCHEMA, "kind": "probe", "model": "x"},
        {"schema": SCHEMA, "kind": "probe", "model": "x", "options": "[]", "made": "{}"},
        {"schema": SCHEMA, "kind": "probe", "model": "x", "options": "[" * 100_000, "made": "{}"},
        {"schema": SCHEMA, "kind": "probe", "model": "x", "options": "{", "made": "{}"},
    ]):  # fmt: skip
        path = tmp_path / f"{number}.safetensors"
        save_file(one, path, metadata)
        with pytest.raises(ConfigError, match="no trained scorer"):
            ScorerFile.load(path)
    with pytest.raises(ConfigError, match="No such file"):
        ScorerFile.load(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"make one with sp train scorer"):
        ScorerFile.load(tmp_path)
    monkeypatch.setattr("sp.scoring.trained.base.MOST_BYTES", 10)
    with pytest.raises(ConfigError, match="too many"):
        ScorerFile.load(tmp_path / "0.safetensors")


def test_damaged_files_never_crash(drafter, tmp_path) -> None:
    path = tmp_path / "scorer.safetensors"
    weights_for(drafter, "probe", path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    refused: list[str] = []
    for _ in range(300):
        damaged = bytearray(whole[: rng.integers(1, len(whole) + 1)] if rng.random() < 0.3 else whole)
        for place in rng.integers(0, min(len(damaged), 400), rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            found = ScorerFile.load(path)
            json.dumps(dict(found.options))
        except ConfigError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert not any("\n" in one for one in refused)


def test_the_embedded_weights_belong_to_the_embedded_drafter() -> None:
    """And are small, and find a needle of seed 0, which they were not trained on, in a prompt of 1024 tokens."""
    loaded = load(embedded("drafter"), device="cpu")
    found = ScorerFile.load(EMBEDDED_SCORER)
    assert found.kind in KINDS
    assert EMBEDDED_SCORER.stat().st_size < 1 << 20
    scorer = SCORERS.build(found.kind)
    example = TASKS.build("needle").example(0, 1024, counter(loaded.tokenizer))
    drafted = example.prompt(loaded.template).tokenise(loaded.tokenizer)
    scores = scorer.score(score_request(loaded, drafted)).scores
    free = ~drafted.mask("protected")
    assert auc(scores[free], drafted.mask("needle")[free]) > 0.95


def test_what_comes_without_weights_says_so_and_what_comes_with_some() -> None:
    """The embedded file is of one kind and for one drafter; what is refused for either is not sent to the other."""
    loaded = load(embedded("drafter"), device="cpu")
    asked = silently(ask(loaded.model, 200, 4), progress=None)
    with pytest.raises(ConfigError) as told:
        SCORERS.build("lines").score(asked)
    train = "train some for this drafter with sp train scorer (kind: {}) and name them: scorer.weights=FILE"
    assert str(told.value) == f"scorer lines comes without weights; {train.format('lines')}, or use --scorer probe"
    other = replace(asked, model=load(embedded("target"), device="cpu").model)
    with pytest.raises(ConfigError) as told:
        SCORERS.build("lines").score(other)
    assert str(told.value) == f"scorer lines comes without weights; {train.format('lines')}"
    with pytest.raises(ConfigError) as told:
        SCORERS.build("probe").score(other)
    said = "scorer probe comes with weights for the embedded drafter alone"
    assert str(told.value) == f"{said}; {train.format('probe')}"


def test_without_an_embedded_file_the_error_says_how_to_make_one(drafter, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("sp.scoring.trained.base.EMBEDDED_SCORER", tmp_path / "none.safetensors")
    with pytest.raises(ConfigError, match=r"sp train scorer .* scorer\.weights=FILE"):
        SCORERS.build("probe").score(silently(ask(drafter, 200, 4), progress=None))


def test_thinking_marks_behind_the_question_are_not_read(drafter, tmp_path) -> None:
    path = tmp_path / "scorer.safetensors"
    weights_for(drafter, "probe", path)
    scorer = SCORERS.build("probe", {"weights": str(path)})
    plain = silently(ask(drafter, 300), progress=None)
    ids = np.append(plain.ids, [1, 2, 3])
    more = {name: np.append(getattr(plain, name), np.zeros(3, bool)) for name in ("question", "needle")}
    marked = replace(plain, ids=ids, positions=np.arange(303), content_end=300, **more)
    found = scorer.score(marked).scores
    np.testing.assert_array_equal(found[:300], scorer.score(plain).scores)
    assert not found[300:].any()
