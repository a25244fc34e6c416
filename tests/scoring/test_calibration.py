"""Calibrations: the record and its file, texts, what is chosen of samples, and the scorer that reads by it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from sp.errors import ConfigError
from sp.models import Retrieval
from sp.models.synthetic.shapes import find_shape
from sp.prompt.spans import same_start
from sp.scoring import SCORERS, ScoreRequest
from sp.scoring.attention.attention import TailScorer
from sp.scoring.attention.heads import CalibratedScorer, rule_of_thumb, up_to_question
from sp.scoring.calibration import record
from sp.scoring.calibration.measure import calibrate, choose, judge
from sp.scoring.calibration.reading import KINDS, PHRASINGS, Sample, fill, make_text, questions, samples
from sp.scoring.calibration.record import Calibration
from sp.session.loaded import embedded, load

MADE = Calibration("ab" * 32, "tiny.gguf", {3: (0, 2), 1: (1,)}, "none", 0.0123, 0.98, 64, {"seed": 0})


@pytest.fixture(scope="module")
def drafter():
    return load(embedded("drafter"), extrapolate=True, device="cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    record._sha256.cache_clear()
    record.shipped.cache_clear()


def test_a_file_comes_back_as_it_was(tmp_path) -> None:
    path = tmp_path / "c.json"
    MADE.save(path)
    assert Calibration.load(path) == MADE
    assert MADE.depth == 4
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "sp-calibration/9"}, "schema"),
        ({"sha256": "short"}, "64 hexadecimal digits"),
        ({"rotary": "pre"}, "rotary must be none or post"),
        ({"heads": {}}, "heads must be an object from layer numbers"),
        ({"heads": {"x": [1]}}, "heads must be an object from layer numbers"),
        ({"heads": {"3": [2, 1]}}, "ascending"),
        ({"heads": {"3": [1, 1]}}, "ascending"),
        ({"heads": {"3": [-1]}}, "ascending"),
        ({"heads": {"3": [True]}}, "ascending"),
        ({"depth": 7}, "depth is 7"),
        ({"rank": 1.5}, "rank must be"),
        ({"n": 0}, "n must be"),
        ({"made": None}, "made must be"),
    ],
    ids=str,
)
def test_a_wrong_file_is_one_line(tmp_path, change, message) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(MADE.as_dict() | change))
    with pytest.raises(ConfigError, match=message) as caught:
        Calibration.load(path)
    assert "\n" not in str(caught.value)
    assert "make a calibration with sp calibrate" in str(caught.value)


@pytest.mark.parametrize("heads", [{99: (0,)}, {0: (0, 99)}], ids=str)
def test_heads_that_a_file_has_not_are_refused(drafter, heads) -> None:
    with pytest.raises(ConfigError, match="names heads that the file does not have"):
        replace(MADE, heads=heads).retrieval(drafter.model.config)


def test_a_calibration_is_found_by_what_is_in_the_file(tmp_path) -> None:
    file, copy = tmp_path / "one.gguf", tmp_path / "two.gguf"
    file.write_bytes(b"weights")
    copy.write_bytes(b"weights")
    assert record.find_calibration(file) is None
    kept = record.keep_calibration(replace(MADE, sha256=record.file_sha256(file)))
    assert kept is not None
    assert kept.parent == record.folder()
    assert record.find_calibration(copy) == record.find_calibration(file) == Calibration.load(kept)
    copy.write_bytes(b"others!")
    assert record.find_calibration(copy) is None


def test_a_hash_is_remembered_between_processes(tmp_path, monkeypatch) -> None:
    file = tmp_path / "one.gguf"
    file.write_bytes(b"weights")
    want = record.file_sha256(file)
    record._sha256.cache_clear()
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("hashed twice"))
    assert record.file_sha256(file) == want
    note = next((record.folder() / "hashes").iterdir())
    note.write_text("{")
    monkeypatch.undo()
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    record._sha256.cache_clear()
    assert record.file_sha256(file) == want


def test_nothing_is_kept_where_nothing_can_be_written(tmp_path, monkeypatch) -> None:
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "blocked"))
    file = tmp_path / "one.gguf"
    file.write_bytes(b"weights")
    assert record.keep_calibration(replace(MADE, sha256=record.file_sha256(file))) is None


def test_what_ships_belongs_to_the_embedded_drafter(drafter) -> None:
    found = record.find_calibration(drafter.path)
    assert found is not None
    assert found.retrieval(drafter.model.config).depth == found.depth <= drafter.model.config.layers


@pytest.mark.parametrize("kind", KINDS)
def test_texts_hold_their_needles_and_are_drawn_by_their_seed(kind) -> None:
    def words(text: str) -> int:
        return len(text.split())

    made = [make_text(kind, PHRASINGS[:8], 900, words, random.Random(seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    assert all(made[0].document.count(needle) == 1 for needle, _ in made[0].needles)
    assert 800 <= words(made[0].document) <= 900


def test_phrasings_are_of_two_halves_and_few_words_shared() -> None:
    assert len(PHRASINGS) == 16
    assert len({needle for needle, _ in PHRASINGS} | {question for _, question in PHRASINGS}) == 32
    filled = fill(PHRASINGS, random.Random(0))
    assert not any("{" in part for pair in filled for part in pair)


def drawn(good: tuple[int, ...], rotary: int = 0, n: int = 24, seed: int = 0) -> list[Sample]:
    """Samples of random weights whose needle stands out in some layers."""
    rng, found = np.random.default_rng(seed), []
    for index in range(n):
        weights = rng.random((2, 6, 4, 30, 32), dtype=np.float32)
        for layer in good:
            weights[rotary, layer, :, 7] += 2
        found.append(Sample("prose", index % 2, (7,), weights))
    return found


@pytest.mark.parametrize("rotary", [0, 1])
def test_the_layers_that_find_the_needle_are_chosen(rotary) -> None:
    choice = choose(drawn((3, 4), rotary))
    assert (choice.rotary, choice.unit, sorted(choice.heads)) == (("none", "post")[rotary], "layers", [3, 4])
    assert choice.finds
    assert choice.left_out.found_needles.mean() == 1


def test_the_earlier_layers_are_chosen_of_those_that_are_as_good() -> None:
    assert sorted(choose(drawn((1, 2, 4, 5))).heads) == [1, 2]


def test_single_heads_are_chosen_where_a_layer_hides_them() -> None:
    found = drawn(())
    for sample in found:
        sample.weights[0, 2, 1, 7] += 0.9  # in the mean over the chunk above all; the largest of four is noise
        sample.weights[0, 2, 0, ::2] += 3
    choice = choose(found)
    assert (choice.unit, choice.heads) == ("heads", {2: (1,)})


def test_random_weights_find_nothing() -> None:
    assert not choose(drawn(())).finds


def test_the_first_chunk_is_no_rival() -> None:
    [sample] = drawn((2,), n=1)
    sample.weights[0, 2, :, 0] = 99
    assert judge([sample], "none", {2: (0, 1, 2, 3)}).ranks.tolist() == [0]


def test_the_embedded_drafter_is_calibrated(drafter) -> None:
    told: list[int] = []
    found = calibrate(
        drafter.path, drafter.model, drafter.tokenizer, drafter.template, tokens=200, progress=told.append
    )
    assert sum(told) == questions(1) == found.n
    assert found.sha256 == record.file_sha256(drafter.path)
    again = calibrate(drafter.path, drafter.model, drafter.tokenizer, drafter.template, tokens=200)
    assert found == again


def test_a_text_is_read_once_for_all_its_questions(drafter) -> None:
    one = next(islice(samples(drafter.model, drafter.tokenizer, drafter.template, tokens=300), 3, None))
    weights = one.weights.sum(axis=(-1, -2))
    assert (weights > 0).all()
    assert np.isfinite(one.weights).all()
    assert one.weights[1].max() <= 1
    assert same_start(np.arange(3), np.arange(9)) == 3


def test_a_window_too_short_for_a_text_is_refused(drafter) -> None:
    model = drafter.model
    before = model.config
    try:
        model.config = replace(before, context=1000)
        with pytest.raises(ConfigError, match="needs a context of 3072 tokens, and the drafter has 1000"):
            next(samples(model, drafter.tokenizer, drafter.template))
    finally:
        model.config = before


def asked(drafter, tokens: int = 400, **changes) -> ScoreRequest:
    rng = np.random.default_rng(3)
    ids, question = rng.integers(100, 1000, tokens), np.zeros(tokens, bool)
    question[-20:-4] = True
    return ScoreRequest(drafter.model, ids, np.arange(tokens), question, np.zeros(tokens, bool), **changes)


def with_retrieval(drafter, retrieval, request):
    before = drafter.model.config
    try:
        drafter.model.config = replace(before, retrieval=retrieval)
        return CalibratedScorer().score(request)
    finally:
        drafter.model.config = before


def test_the_rule_is_what_tail_does_with_the_same_options(drafter) -> None:
    request, rule = asked(drafter), rule_of_thumb(drafter.model.config)
    same = TailScorer(queries="question", rotary="none", order="heads,queries,pool", over_queries="max", pool=1,
                      layers=rule.layers, depth=rule.depth)  # fmt: skip
    found = CalibratedScorer().score(request)
    np.testing.assert_array_equal(found.scores[:-4], same.score(up_to_question(request)).scores)
    assert not found.scores[-4:].any()


def test_chosen_heads_are_those_that_count(drafter) -> None:
    request, layers = asked(drafter), drafter.model.config.attention_layers
    every = tuple(range(drafter.model.config.heads))
    parts = [with_retrieval(drafter, Retrieval(((layers[1], (head,)),), "post"), request).scores for head in every]
    both = with_retrieval(drafter, Retrieval(((layers[1], every[:2]),), "post"), request).scores
    np.testing.assert_array_equal(both, np.maximum(parts[0], parts[1]))
    whole = with_retrieval(drafter, Retrieval(((layers[1], every),), "post"), request).scores
    np.testing.assert_allclose(whole, np.max(parts, axis=0), rtol=1e-6)


def test_without_a_question_the_last_tokens_ask(drafter) -> None:
    request = asked(drafter)
    nothing = replace(request, question=np.zeros(len(request.ids), bool))
    assert up_to_question(nothing).question.sum() == 32
    assert CalibratedScorer().score(nothing).scores.shape == request.ids.shape


def test_keys_of_the_layers_that_are_run_are_kept(drafter) -> None:
    scorer = SCORERS.build("calibrated")
    kept = scorer.prefix_layers(drafter.model.config)
    assert kept is not None
    assert kept.layers == rule_of_thumb(drafter.model.config).depth
    assert 0 < scorer.flops(drafter.model.config, 1000) < SCORERS.build("tail").flops(drafter.model.config, 1000)


def test_a_file_of_random_weights_gets_the_rule(tmp_path) -> None:
    from sp.models.synthetic.synthetic import write_synthetic

    made = load(write_synthetic(tmp_path / "noise.gguf", "tiny-qwen3", "q8_0", 0), extrapolate=True, device="cpu")
    found = calibrate(made.path, made.model, made.tokenizer, made.template, tokens=400)
    assert found.made["chosen"] == "by rule, as no head finds needles"
    assert found.heads == dict(rule_of_thumb(made.model.config).heads)
    assert found.top_5_percent < 0.2


@pytest.mark.parametrize(
    ("shape", "layers"), [("qwen3.5-0.8b", (11, 15)), ("qwen3-0.6b", (16, 17)), ("llama-3.2-1b", (9, 10))]
)
def test_the_rule_takes_layers_by_depth_and_not_by_their_number(shape: str, layers: tuple[int, ...]) -> None:
    """Of a hybrid, attention layers before the first at 60 % of the depth are few: block 15 of 24 is what others found
    to retrieve best in these very shapes."""
    assert rule_of_thumb(find_shape(shape).config).layers == layers
