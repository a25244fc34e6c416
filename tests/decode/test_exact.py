"""Speculative answers are those of plain greedy decoding, token for token, whatever the draft."""

from __future__ import annotations

import numpy as np
import pytest
from embedded_pair import known_task
from models.tiny_drafts import BLOCK, write_draft
from models.tiny_models import VOCAB, write_tiny

from sp.decode.base import gather, generate
from sp.decode.dflash import DDTree, DFlash
from sp.decode.speculate import speculate
from sp.models import Hooks, load_model, prefill
from sp.models.drafts.dflash import load_draft
from sp.models.drafts.dflash_session import DraftSession
from sp.models.run.tree import LayerFeatures
from sp.session import embedded, load

DECODERS = [DFlash(), DDTree(1), DDTree(9, 3), DDTree(40, 6, chain_seed=False)]
LAYERS = {"qwen3": (0, 2), "qwen35": (1, 4)}
LIMIT = 32
SHORT = 16  # for the embedded target


class Case:
    """A target, a prompt, its greedy answer and drafts of it."""

    def __init__(self, name: str, folder) -> None:
        if name == "embedded":
            loaded = load(embedded("target"), device="cpu")
            example = known_task().example(0, 320, lambda text: len(loaded.tokenizer.encode(text).ids))
            prompt = example.prompt(loaded.template).tokenise(loaded.tokenizer)
            self.model, self.ids = loaded.model, prompt.ids[-160:]  # its end: each test here reads it several times
            self.kv = "f16"
        else:
            self.model = load_model(write_tiny(folder / f"{name}.gguf", name, seed=2))
            self.ids, self.kv = np.random.default_rng(6).integers(0, VOCAB, 100), "f32"
        layers = LAYERS.get(name) or tuple(sorted({i * (self.model.config.layers - 1) // 4 for i in range(5)}))
        path = write_draft(folder, "dflash", self.model.config, layers, seed=5)
        self.draft = load_draft(path, self.model)
        self.positions = np.arange(len(self.ids)) * 2
        self.start = int(self.positions[-1]) + 1
        logits, cache = self.read(None)
        limit = SHORT if name == "embedded" else LIMIT
        self.answer = list(generate(self.model, logits, self.start, cache, limit=limit))

    def read(self, session, room: int = 0):
        """The prompt, and what the session makes of it."""
        cache = self.model.new_cache(len(self.ids) + LIMIT + room, self.kv)
        after = None
        if session is not None:
            after = LayerFeatures(session.layers, lambda rows: session.remember(rows, self.positions))
        every = len(self.ids)
        return prefill(self.model, self.ids, self.positions, cache, hooks=Hooks(after_layer=after), rows=every), cache

    def speculate(self, decoder, guesser=None, limit: int = LIMIT):
        """The answer with a draft, and the tokens each pass gave."""
        session = guesser or DraftSession.begin(self.draft, self.model, len(self.ids) + LIMIT)
        logits, cache = self.read(None if guesser else session, decoder.nodes(session.block_size))
        passes: list[int] = []
        how = self.model, session, decoder, logits, self.start, cache
        return speculate(*how, limit=limit, on_pass=passes.append), passes, cache

    def check(self, found: list[int]) -> None:
        """Equal, or the place and the logits where they part."""
        expected = self.answer[: len(found)]
        if found == expected:
            return
        at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
        logits, cache = self.read(None)
        for i in range(at):
            where = np.array([self.start + i])
            logits = prefill(self.model, np.array([expected[i]]), where, cache)
        gap = float(logits[expected[at]] - logits[found[at]])
        pytest.fail(f"parts at token {at}: {found[at]} for {expected[at]}, whose logit is greater by {gap:g}")


class Oracle:
    """Knows the answer; with `noise` only roughly, so that the truth is not always the first guess."""

    layers: tuple[int, ...] = ()

    def __init__(self, case: Case, block_size: int, noise: float = 0.0) -> None:
        self.block_size, self._case, self._noise = block_size, case, noise
        self._rng, self.remembered = np.random.default_rng(3), 0

    def remember(self, features, positions) -> None:
        """Count what the target has read."""
        self.remembered += len(positions)

    def guess(self, token, position, depth):
        """The answer from there on."""
        at = position - self._case.start
        assert token == self._case.answer[at], "the draft is asked about what was accepted"
        logits = self._noise * self._rng.standard_normal((depth, self._case.model.config.vocab)).astype(np.float32)
        for i, true in enumerate(self._case.answer[at + 1 : at + 1 + depth]):
            logits[i, true] += 3
        return logits

    def end(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def case(request, tmp_path_factory) -> Case:
    """Both architectures, small and random."""
    return Case(request.param, tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Case:
    """The embedded target."""
    return Case("embedded", tmp_path_factory.mktemp("case"))


def test_greedy_answers_are_worth_comparing(case, trained) -> None:
    assert min(len(set(one.answer)) for one in (case, trained)) > 6


@pytest.mark.parametrize("decoder", DECODERS[::2], ids=repr)
def test_the_embedded_target_answers_as_without_a_draft(trained, decoder) -> None:
    for guesser in (None, Oracle(trained, 8, noise=0.6)):
        stream, passes, _ = trained.speculate(decoder, guesser, SHORT)
        trained.check(list(stream))
        assert (np.mean(passes) > 2) == (guesser is not None)


@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_random_drafts_change_nothing(case, decoder) -> None:
    stream, passes, cache = case.speculate(decoder)
    case.check(list(stream))
    assert sum(passes) == LIMIT - 1
    assert np.mean(passes) < 2.5, "a random draft is right about as often as chance"
    assert cache.tokens == len(case.ids) + LIMIT - 1, "all but the last token were read, and none besides"


@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_an_oracle_is_taken_at_its_word(case, decoder) -> None:
    oracle = Oracle(case, 8)
    stream, passes, _ = case.speculate(decoder, oracle)
    case.check(list(stream))
    if decoder == DDTree(1):
        assert passes == [2] * 15 + [1]
    elif decoder != DECODERS[-1]:  # whose best-first tree need not be deep
        assert passes == [8] * 3 + [7]
    assert oracle.remembered == sum(passes[:-1])


@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_a_draft_that_is_often_right(case, decoder) -> None:
    stream, passes, _ = case.speculate(decoder, Oracle(case, 6, noise=0.9))
    case.check(list(stream))
    assert len(set(passes)) > 1, "acceptance varies"


def test_a_tree_takes_more_a_pass_than_its_chain(case) -> None:
    means = []
    for decoder in (DFlash(), DDTree(24, 6)):
        stream, passes, _ = case.speculate(decoder, Oracle(case, 6, noise=1.1))
        case.check(list(stream))
        means.append(np.mean(passes))
    assert means[1] > means[0]


def test_the_draft_remembers_the_accepted_path_alone(case) -> None:
    """After many trees it guesses as a draft does that was told of the accepted tokens one after the other."""
    session, oracle = (
        DraftSession.begin(case.draft, case.model, len(case.ids) + LIMIT, "f32"),
        Oracle(case, 6, noise=1.1),
    )
    accepted: list[int] = []

    class Watched:
        block_size, layers, guess, end = 6, session.layers, oracle.guess, session.end

        def remember(self, features, positions) -> None:
            session.remember(features, positions)
            accepted.append(len(positions))

    decoder = DDTree(24, 6)
    logits, cache = case.read(session, decoder.nodes(6))
    list(speculate(case.model, Watched(), decoder, logits, case.start, cache, limit=LIMIT))
    told, plain = sum(accepted), DraftSession.begin(case.draft, case.model, len(case.ids) + LIMIT, "f32")
    assert max(accepted) > 2
    _, cache = case.read(plain)
    for i, token in enumerate(case.answer[:told]):
        where = np.array([case.start + i])
        after = LayerFeatures(session.layers, lambda rows, where=where: plain.remember(rows, where))
        prefill(case.model, np.array([token]), where, cache, hooks=Hooks(after_layer=after))
    found = [one.guess(case.answer[told], case.start + told, BLOCK - 1) for one in (session, plain)]
    np.testing.assert_allclose(*found, atol=1e-3 * np.abs(found[1]).max())


@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_answers_shorter_than_a_block(case, decoder, limit) -> None:
    for guesser in (None, Oracle(case, BLOCK)):
        stream, passes, _ = case.speculate(decoder, guesser, limit)
        found = list(stream)
        assert len(found) == limit
        case.check(found)
        assert sum(passes) == limit - 1


@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_an_end_inside_a_block_ends_the_answer(case, decoder) -> None:
    expected: list[int] = []
    end = next(token for i, token in enumerate(case.answer) if i > 4 and token not in case.answer[:i])
    expected = case.answer[: case.answer.index(end)]
    stream, _, cache = case.speculate(decoder, Oracle(case, 16))
    assert gather(stream, frozenset({end})) == expected
    assert cache.tokens > len(case.ids), "the cache is whole"
    stops = iter(range(100))
    stream, *_ = case.speculate(decoder, Oracle(case, 16))
    assert gather(stream, frozenset(), lambda _: next(stops) == 2) == case.answer[:3]


@pytest.mark.parametrize("kv", ["f16", "q4_0"])
def test_packed_caches(case, kv) -> None:
    """Keys are packed node by node as they are one by one, so that compaction moves bytes and rounds nothing."""
    before, case.kv = case.kv, kv
    try:
        logits, cache = case.read(None)
        expected = list(generate(case.model, logits, case.start, cache, limit=LIMIT))
        mine, case.answer = case.answer, expected
        stream, *_ = case.speculate(DDTree(9, 3), Oracle(case, 6, noise=0.9))
        case.check(list(stream))
        case.answer = mine
    finally:
        case.kv = before
