"""The embedded pair: its files, the needle pair's generators, and that it truly retrieves (a few prompts on a CPU)."""

from __future__ import annotations

import json
import random
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from embedded_pair import known_task
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).resolve().parent.parent / "experiments" / "needle_pair"
sys.path.insert(0, str(HERE))

import bank as bank_module  # noqa: E402
import text as phrases  # noqa: E402
from pieces import Bank, Composer, Recipe  # noqa: E402
from tokenizer import REGEX, SPECIALS, Encoder  # noqa: E402

import sp  # noqa: E402
from sp.evals import Example  # noqa: E402
from sp.evals.metrics import score_answer  # noqa: E402
from sp.evals.run import counter  # noqa: E402
from sp.gguf import GGUFFile  # noqa: E402
from sp.session import Pipeline, RunOptions  # noqa: E402

ASSETS = Path(str(files("sp") / "assets"))
ROLES = ("drafter", "target")
MIXED = {
    "tasks": {"key": 0.5, "value": 0.2, "query": 0.15, "vt": 0.15},
    "haystack": {"grammar": 0.3, "code": 0.3, "noise": 0.2, "lines": 0.2},
    "styles": {"adjective-noun": 0.4, "pseudo": 0.2, "name": 0.2, "uuid": 0.2},
    "kinds": {"number": 0.5, "word": 0.3, "uuid": 0.2},
}


def real_tokenizer(role: str) -> Tokenizer:
    """The tokenizer of a file, built here from its metadata alone."""
    with GGUFFile.open(ASSETS / f"{role}.gguf") as file:
        meta = file.metadata
        tokens, merges = list(meta["tokenizer.ggml.tokens"]), list(meta["tokenizer.ggml.merges"])
        regex = REGEX[str(meta["tokenizer.ggml.pre"])]
    vocab = {t: i for i, t in enumerate(tokens)}
    tok = Tokenizer(models.BPE(vocab, [tuple(m.split(" ", 1)) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return tok


@pytest.fixture(scope="module")
def composers() -> dict[str, Composer]:
    texts = {"grammar": bank_module.grammar(7, 120_000, True), "code": bank_module.code(150_000)}
    texts["prose"] = texts["grammar"]
    encoders = {role: Encoder(real_tokenizer(role)) for role in ROLES}
    return {role: Composer(e, Bank(e, texts), 5) for role, e in encoders.items()}


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


@pytest.mark.parametrize("role", ROLES)
def test_composed_tokens_are_the_tokens_of_the_text(role: str, composers: dict[str, Composer]) -> None:
    composer, tok = composers[role], composers[role].encoder.tokenizer
    for _ in range(40):
        s = composer.sample(Recipe(1024, needles=(1, 6), turns=(1, 3), short=0.3, **MIXED))
        assert tok.encode(composer.encoder.decode(s.ids)).ids == s.ids


@pytest.mark.parametrize("role", ROLES)
def test_every_supervised_value_token_points_at_its_copy_in_the_needle(
    role: str, composers: dict[str, Composer]
) -> None:
    composer = composers[role]
    for _ in range(40):
        s = composer.sample(Recipe(800, needles=(2, 6), turns=(1, 3), **MIXED))
        pairs = [(row, src) for row, src in zip(s.rows, s.source, strict=True) if src >= 0]
        assert pairs
        for row, src in pairs:
            assert s.ids[src] == s.ids[row + 1]
            assert any(a <= src < z for a, z in s.spans), "the source lies in a needle"


def test_a_needle_is_there_once_and_only_its_key_is_in_the_question(composers: dict[str, Composer]) -> None:
    composer = composers["target"]
    recipe = Recipe(1500, needles=(1, 5), turns=(1, 1), hard=0.5, held_out=True)
    for _ in range(30):
        s = composer.sample(recipe)
        document = composer.encoder.decode(s.ids[s.document[0] : s.document[1]])
        asked = s.needles[s.asked[0]]
        assert document.count(asked.value) == 1
        assert asked.key in s.turns[0].question
        assert asked.value not in s.turns[0].question + s.turns[0].prefix
        keys = [n.key for n in s.needles]
        assert len(set(keys)) == len(keys)
        assert len({n.value for n in s.needles}) == len(s.needles)


def test_hard_negatives_share_half_of_the_key() -> None:
    source = phrases.Source(random.Random(3))
    for style in ("adjective-noun", "uuid"):
        key = source.key(style)
        other = source.near(key, style)
        assert other != key
        assert set(other.split("-")) & set(key.split("-"))


def test_held_out_words_are_never_drawn_in_training() -> None:
    train, held_out = (phrases.Source(random.Random(0), part) for part in (False, True))
    assert not set(train.nouns) & set(held_out.nouns)
    assert not set(train.adjectives) & set(held_out.adjectives)


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return sp.load(device="cpu")


def fresh(pipeline: Pipeline, count: int) -> list[Example]:
    """Prompts of 1,500 tokens that no training saw."""
    task, tokens = known_task(), counter(pipeline.target.tokenizer)
    return [task.example(100 + index, 1500, tokens) for index in range(count)]


@pytest.mark.slow
def test_the_target_answers_fresh_prompts(pipeline: Pipeline) -> None:
    right = 0
    for example in fresh(pipeline, 4):
        options = RunOptions(compress="off", max_new_tokens=example.max_new_tokens)
        answer = pipeline.run(example.prompt(pipeline.target.template), options, full=False).answer
        right += score_answer(answer.text, example.answers, example.match) == 1
    assert right >= 3, "measured accuracy is above 0.9; two misses in four would be a broken file"


def test_the_drafter_looks_at_the_needle(pipeline: Pipeline) -> None:
    """A fifth of the prompt by the scores of `tail` holds the evidence, which chance seldom keeps."""
    whole = 0
    for example in fresh(pipeline, 6):
        prompt = pipeline.tokenise(example.prompt(pipeline.target.template))
        options = RunOptions(0.2)
        _, selection = pipeline.select(pipeline.score(prompt, options), prompt, options)
        whole += bool(selection.kept[prompt.mask("needle")].all())
    assert whole >= 4, "chance keeps about one in five"


def test_the_sample_document_holds_its_needle_once() -> None:
    meta = json.loads((ASSETS / "sample.json").read_text())
    document = (ASSETS / "sample.txt").read_text()
    assert document.count(meta["needle"]) == 1
    for answer in meta["answers"]:
        assert document.count(answer) == 1
        assert answer in meta["needle"]
        assert answer not in meta["question"]
    tokens = len(real_tokenizer("target").encode(document + "\n\n" + meta["question"]).ids)
    assert 7900 <= tokens <= 8190
    assert document.index(meta["needle"]) > len(document) / 2
