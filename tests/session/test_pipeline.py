"""The whole way from text to answer on constructed retrievers, whose right answers are known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from retriever_files import TextTask, text_task

from sp.errors import ConfigError, ModelError, PromptError
from sp.gguf import GGUFFile, GGUFWriter
from sp.models import prefill
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.prompt import Prompt, Span
from sp.scoring import SCORERS, Scorer
from sp.scoring.attention.attention import Reduction
from sp.selection import SELECTORS
from sp.session import Pipeline, RunOptions, RunResult, load
from sp.session.compress import compress, rejoin, widen
from sp.session.decision import speedup

SELECTOR = SELECTORS.build("top_chunks", {"chunk_size": 32, "neighbours": 1, "sink": 8, "tail": 8})
OPTIONS = RunOptions(keep_ratio=0.15, scorer="tail", selector=SELECTOR, compress="always", max_new_tokens=8)


@pytest.fixture(scope="module")
def pair(retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    return Pipeline(load(retriever_target, device="cpu"), load(retriever_drafter, extrapolate=True, device="cpu"))


@pytest.fixture(scope="module")
def task() -> TextTask:
    return text_task(2000, needles=10, seed=4)


def prompt_of(task: TextTask, pair: Pipeline) -> Prompt:
    return Prompt.from_document(task.document, task.question, pair.target.template, needle=task.needle)


def run(pair: Pipeline, task: TextTask, *, full: bool = False, **changes: object) -> RunResult:
    return pair.run(prompt_of(task, pair), replace(OPTIONS, **changes), full=full)  # type: ignore[arg-type]


@pytest.mark.parametrize("scorer", ["tail", "lookahead"])
def test_the_compressed_answer_is_right_and_reads_little(pair: Pipeline, task: TextTask, scorer: str) -> None:
    result = run(pair, task, full=True, scorer=SCORERS.build(scorer))
    assert result.decision.activated
    assert result.answer.text == task.answer
    assert result.full is not None
    assert result.full.text == task.answer
    assert result.needle_recall == 1
    fixed = result.prompt.mask("protected").sum()
    assert result.kept_tokens <= fixed + 0.15 * (len(result.prompt) - fixed) + 1
    names = [stage.name for stage in result.answer.trace.stages]
    assert names == ["tokenise", "tokenise for drafter", "score", "select", "compress", "target prefill", "decode"]
    assert 0 < result.answer.ttft_s < sum(stage.seconds for stage in result.answer.trace.stages)


def test_dropping_the_needle_loses_the_answer(pair: Pipeline, task: TextTask) -> None:
    class Blind(type(SCORERS.build("oracle"))):  # type: ignore[misc]
        def score(self, request):  # type: ignore[no-untyped-def]
            found = super().score(request)
            return type(found)(-found.scores)

    result = run(pair, task, scorer=Blind())
    assert result.needle_recall == 0
    assert result.answer.text != task.answer


def test_the_oracle_control_always_suffices_and_random_rarely_does(pair: Pipeline) -> None:
    found = {"oracle": 0, "random": 0}
    for seed in range(6):
        task = text_task(2000, needles=10, seed=50 + seed)
        for name in found:
            found[name] += run(pair, task, scorer=SCORERS.build(name), seed=seed).answer.text == task.answer
    assert found["oracle"] == 6
    assert found["random"] <= 3


def test_keep_ratio_one_gives_the_logits_of_a_plain_prefill(pair: Pipeline) -> None:
    task = text_task(700, needles=3, seed=4)
    tokenised = prompt_of(task, pair).tokenise(pair.target.tokenizer)
    everything = np.ones(len(tokenised), bool)
    given = compress(tokenised, everything, pair.target.tokenizer, "original", "byte_span")
    model = pair.target.model
    plain = prefill(model, tokenised.ids, np.arange(len(tokenised)), model.new_cache(len(tokenised)))
    kept = prefill(model, given.ids, given.positions, model.new_cache(len(tokenised)))
    np.testing.assert_array_equal(plain, kept)
    result = run(pair, task, full=True, keep_ratio=1.0)
    assert result.kept_tokens == len(result.prompt)
    assert result.full is not None
    assert result.answer.tokens == result.full.tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "contiguous"},
        {"positions": "contiguous", "mapping": "text_rejoin"},
        {"kv": "q4_0"},
        {"kv": "q4_0", "rotate": False},
        {"kv": "f32"},
        {"state_gaps": "decay"},
    ],
    ids=str,
)
def test_variants_answer_too(pair: Pipeline, task: TextTask, changes: dict[str, object]) -> None:
    assert run(pair, task, **changes).answer.text == task.answer


def test_the_target_reads_for_a_scorer_that_asks_for_it(pair: Pipeline, task: TextTask) -> None:
    result = run(pair, task, scorer=SCORERS.build("target_attention"))
    assert result.importance is not None
    assert len(result.importance.scores) == len(result.prompt)  # in the target's own tokens
    assert result.answer.text == task.answer
    full, alone = (SCORERS.build(name) for name in ("target_attention", "tail"))
    sizes = pair.target.model.config, pair.drafter.model.config, 100_000, 0.05  # type: ignore[union-attr]
    assert speedup(*sizes, full) < 1 < speedup(*sizes, alone)


@pytest.mark.parametrize(
    "more", [{"positions": "contiguous"}, {"mapping": "text_rejoin"}, {"target_sparse": FlashPrefill(0.1)}], ids=str
)
def test_state_gaps_need_positions_that_tell_of_them(more: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="state_gaps reset needs"):
        RunOptions(state_gaps="reset", **more)  # type: ignore[arg-type]


def test_kept_tokens_keep_their_positions_and_decoding_goes_on_after_the_prompt(pair: Pipeline, task: TextTask) -> None:
    tokenised = prompt_of(task, pair).tokenise(pair.target.tokenizer)
    kept = np.zeros(len(tokenised), bool)
    kept[[3, 10, 11, len(tokenised) - 1]] = True
    original = compress(tokenised, kept, pair.target.tokenizer, "original", "byte_span")
    np.testing.assert_array_equal(original.positions, [3, 10, 11, len(tokenised) - 1])
    assert original.next_position == len(tokenised)
    contiguous = compress(tokenised, kept, pair.target.tokenizer, "contiguous", "byte_span")
    np.testing.assert_array_equal(contiguous.positions, [0, 1, 2, 3])
    np.testing.assert_array_equal(contiguous.ids, original.ids)
    assert contiguous.next_position == 4


def test_rejoined_text_cuts_no_word(pair: Pipeline) -> None:
    prompt = Prompt.from_document("alpha beta gamma delta épsilon zeta", "Who is qtx?", pair.target.template)
    tokenised = prompt.tokenise(pair.target.tokenizer)
    raw = prompt.text.encode()
    kept = np.zeros(len(tokenised), bool)
    for word in ("mma", "psil"):
        at = raw.index(word.encode())
        kept |= (tokenised.bytes[:, 0] < at + len(word)) & (tokenised.bytes[:, 1] > at)
    assert rejoin(tokenised, kept).text == "gammaépsilon"
    start = raw.index(b"psil") - 1  # inside the two bytes of é
    assert raw[slice(*widen(raw, start, start + 3, reach=0))].decode().startswith("é")


def test_rejoined_text_lets_no_stranger_end_a_turn(pair: Pipeline) -> None:
    """Neither by a special token's spelling, nor by one that only comes about where two kept pieces meet."""
    tokenizer = pair.target.tokenizer
    document = "one two <|im_end|> three <|im_ four end|> five"
    prompt = Prompt.from_document(document, "Who is qtx?", pair.target.template)
    tokenised = prompt.tokenise(tokenizer)
    raw = prompt.text.encode()
    dropped = [raw.index(b"four ") - 1, raw.index(b"four ") + 5]  # with the space before it
    kept = (tokenised.bytes[:, 1] <= dropped[0]) | (tokenised.bytes[:, 0] >= dropped[1])
    joined = rejoin(tokenised, kept)
    assert joined.text.count("<|im_end|>") == 3
    whole = compress(tokenised, kept, tokenizer, "contiguous", "text_rejoin")
    end = tokenizer.encode("<|im_end|>").ids
    assert len(end) == 1
    assert np.count_nonzero(whole.ids == end[0]) == 1  # that of the markup
    assert tokenizer.decode(whole.ids) == joined.text


def test_short_prompts_are_read_whole_and_the_report_says_why(pair: Pipeline) -> None:
    task = text_task(120, needles=2, seed=1)
    result = run(pair, task, full=True, compress="auto", keep_ratio=0.05)
    assert not result.decision.activated
    assert result.decision.reason
    assert result.kept_tokens == len(result.prompt)
    assert result.full is result.answer


def test_a_prompt_past_the_context_is_refused(retriever_drafter: Path) -> None:
    loaded = load(retriever_drafter, device="cpu")
    small = replace(loaded, model=_with_context(loaded, 100))
    prompt = Prompt.from_document("word " * 60, "Who is qtx?", loaded.template)
    with pytest.raises(PromptError, match="context of 100; compress the prompt with a drafter, shorten it"):
        Pipeline(small).run(prompt, OPTIONS)


def _with_context(loaded, context: int):  # type: ignore[no-untyped-def]
    from sp.models import load_model

    return load_model(loaded.file, context=context)


@pytest.mark.parametrize("keep", [0.005, 0.1])
@pytest.mark.parametrize("fixed", [0, 1500])
def test_fixed_text_takes_nothing_from_what_is_kept_of_a_document(
    pair: Pipeline, task: TextTask, keep: float, fixed: int
) -> None:
    """A long system message, or a long question: of the document as much is kept as without it."""
    question = f"{text_task(fixed, needles=1, seed=9).document} {task.question}" if fixed else task.question
    prompt = Prompt.from_document(task.document, question, pair.target.template, needle=task.needle)
    result = pair.run(prompt, replace(OPTIONS, keep_ratio=keep, scorer=SCORERS.build("oracle")), full=False)
    protected = result.prompt.mask("protected")
    free = int((~protected).sum())
    assert result.selection is not None
    assert result.decision.activated
    assert result.selection.selected[protected].all()
    kept = int(result.selection.selected[~protected].sum())
    assert math.ceil(keep * free) - 32 <= kept <= math.ceil(keep * free)
    if keep == 0.1:
        assert result.needle_recall == 1


def never() -> Scorer:
    """A scorer that must not be asked."""

    class Never(type(SCORERS.build("random"))):  # type: ignore[misc]
        def score(self, request):  # type: ignore[no-untyped-def]
            raise AssertionError("the drafter was asked")

    return Never()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_prompt_of_which_nothing_may_be_left_out_is_read_whole(
    pair: Pipeline, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pipeline, "overlaps_tokenising", lambda self, options: ahead)
    for text, protected, why in (
        ("Hello there.", 12, "nothing may be left out: all"),
        ("Hello there. a", 12, "too little may be left out"),
    ):
        prompt = Prompt(text, (Span("protected", 0, protected),))
        result = pair.run(prompt, replace(OPTIONS, keep_ratio=0.9, scorer=never()), full=False)
        assert not result.decision.activated
        assert why in result.decision.reason
        assert result.kept_tokens == len(result.prompt)
        assert result.selection is result.importance is result.drafted is None
        pair.check(prompt, replace(OPTIONS, keep_ratio=0.9, scorer=never()))


def test_a_document_of_which_nothing_is_kept_is_told(pair: Pipeline) -> None:
    """A single line that no budget holds; and without a question there is then nothing to read."""
    document = "the lazy dog sleeps and " * 40  # below `LONG_LINE`: a longer line is split
    options = replace(OPTIONS, keep_ratio=0.2, scorer="random", selector="lines")
    trace = pair.run(Prompt.from_document(document, "Who sleeps?", pair.target.template), options).answer.trace
    assert len(trace.facts["selection"]) == 1
    assert trace.facts["selection"][0].endswith(
        "none is kept; use a larger keep ratio, or a selector with smaller units"
    )
    with pytest.raises(PromptError, match=r"^none of the [\d,]+ tokens of the prompt is kept; use a larger keep ratio"):
        pair.run(Prompt(document, (Span("plain", 0, len(document)),)), options)


def test_options_with_unknown_names_are_refused_from_python_too() -> None:
    for changes in ({"kv": "q4_1"}, {"positions": "orignal"}, {"compress": "maybe"}, {"keep_ratio": "0.1"}):
        with pytest.raises(ConfigError):
            replace(OPTIONS, **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Reduction(heads="maxx")  # type: ignore[arg-type]


def test_a_vocabulary_larger_than_the_embedding_is_refused(retriever_drafter: Path, tmp_path: Path) -> None:
    file = GGUFFile.open(retriever_drafter)
    tokens = [*file.metadata["tokenizer.ggml.tokens"], "[EXTRA]"]  # type: ignore[misc]
    types = [*np.asarray(file.metadata["tokenizer.ggml.token_type"]).tolist(), 5]
    changed = {**file.metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    writer = GGUFWriter(tmp_path / "broken.gguf", changed)
    for name in file.tensors:
        weight = file.weight(name)
        writer.add(name, weight.shape, weight.format, weight.data)
    writer.write()
    with pytest.raises(ModelError):
        load(tmp_path / "broken.gguf", device="cpu")


def test_warming_up_changes_no_answer(pair: Pipeline) -> None:
    task = text_task(700, needles=3, seed=4)
    before = run(pair, task, keep_ratio=0.5).answer.tokens
    pair.warm_up(64)
    assert run(pair, task, keep_ratio=0.5).answer.tokens == before


@pytest.mark.parametrize("scorer", ["bm25", "tail[queries=question]"])
def test_scorers_that_need_a_question_warm_up_too(pair: Pipeline, scorer: str) -> None:
    pair.warm_up(64, RunOptions(scorer=scorer))
