"""Positions of selected tokens: contiguous for a target with sliding windows, those of the prompt for any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import fuzz_turns
import numpy as np
import pytest
from talks import WINDOW, check, first_logits, nmse, options, pair, replayed, said, text

from sp.errors import ConfigError
from sp.models import prefill
from sp.models.synthetic.shapes import find_shape, list_shapes
from sp.prompt import Prompt
from sp.prompt.prompt import prompt_of
from sp.scoring import SCORERS
from sp.session import Conversation, ConversationOptions, Conversations, Pipeline, RunOptions
from sp.session.compress import positions_for, rejoin, with_positions
from sp.session.disk.shelf import Shelf
from sp.session.store import lasting
from sp.studies.pages.run_report import run_trace, summary

EXACT = 1e-10
RANDOM = SCORERS.build("random")
WINDOWED = {"gemma2", "gemma3", "gemma4", "gpt-oss", "muse-glimmer"}


def document(words: int = 400, seed: int = 0) -> Prompt:
    rng = np.random.default_rng(seed)
    return Prompt.from_document(text(rng, words), text(rng, 6), pair("gemma3").target.template)


@contextmanager
def short_context(tokens: int) -> Iterator[Pipeline]:
    """A windowed target with room for so many tokens."""
    target = pair("gemma3").target
    before = target.model.config
    target.model.config = replace(before, context=tokens)
    try:
        yield pair("gemma3")
    finally:
        target.model.config = before


@pytest.mark.parametrize("family", sorted(WINDOWED | {"qwen3", "qwen35", "llama", "mistral3", "qwen2"}))
def test_auto_is_decided_by_the_windows_of_the_target(family: str) -> None:
    config = find_shape(f"tiny-{family}").config
    assert RunOptions().positions == "auto"
    decided = "contiguous" if family in WINDOWED else "original"
    assert positions_for(RunOptions(), config) == decided
    for positions in ("original", "contiguous"):
        assert positions_for(RunOptions(positions=positions), config) == positions
    assert positions_for(RunOptions(mapping="text_rejoin"), config) == "contiguous"
    assert positions_for(RunOptions(state_gaps="decay"), config) == "original", "there would be no gaps"
    assert with_positions(RunOptions(), config) == RunOptions(positions=decided)


def test_every_shape_with_windows_is_among_these() -> None:
    with_windows = {name for name in list_shapes() if find_shape(name).config.windowed_layers}
    assert {name.removeprefix("tiny-") for name in with_windows if name.startswith("tiny-")} == WINDOWED


def test_text_rejoin_at_original_positions_is_still_refused() -> None:
    with pytest.raises(ConfigError, match="use it with positions contiguous"):
        RunOptions(mapping="text_rejoin", positions="original")


@pytest.mark.parametrize("positions", ["auto", "contiguous", "original"])
def test_a_run_reads_selected_tokens_at_the_positions_of_its_target(positions: str) -> None:
    pipeline, run = pair("gemma3"), options(0.2, scorer=RANDOM, positions=positions)
    with first_logits() as seen:
        result = pipeline.run(document(), run, full=True)
    assert result.full is not None
    assert result.selection is not None
    index, n = result.selection.indices, len(result.prompt)
    assert n > 10 * WINDOW
    model, original = pipeline.target.model, positions == "original"
    places = index if original else np.arange(len(index))
    want = prefill(model, result.prompt.ids[index], places, model.new_cache(n, "f32"))
    full = prefill(model, result.prompt.ids, np.arange(n), model.new_cache(n, "f32"))
    assert nmse(seen[0], want) < EXACT
    assert nmse(seen[1], full) < EXACT, "nothing was left out"
    other = prefill(model, result.prompt.ids[index], np.arange(len(index)) if original else index,
                    model.new_cache(n, "f32"))  # fmt: skip
    assert nmse(seen[0], other) > 1e-6, "positions matter"
    decided = "original" if original else "contiguous"
    line = f"target: selected tokens have {decided} positions; 1 of 2 layers attend in a window of {WINDOW} positions"
    assert summary(result, {})["positions"] == [line]
    assert run_trace(result, pipeline, run, {}).facts["options"]["positions"] == decided


def test_a_prompt_that_is_read_whole_has_its_own_positions() -> None:
    result = pair("gemma3").run(document(), options(1.0, scorer=RANDOM), full=True)
    assert result.full is not None
    assert result.full.tokens == result.answer.tokens
    assert summary(result, {})["positions"] == []


def test_a_target_without_windows_is_read_as_before() -> None:
    runs = [pair().run(document(), options(0.2, scorer=RANDOM, positions=p)) for p in ("auto", "original")]
    assert runs[0].answer.tokens == runs[1].answer.tokens
    assert summary(runs[0], {})["positions"] == []


def test_text_that_is_encoded_again_needs_no_word_about_positions() -> None:
    pipeline, run = pair("gemma3"), options(0.2, scorer=RANDOM, mapping="text_rejoin")
    with first_logits() as seen:
        result = pipeline.run(document(), run, full=False)
    assert result.selection is not None
    ids = rejoin(result.prompt, result.selection.selected).tokenise(pipeline.target.tokenizer).ids
    model = pipeline.target.model
    assert nmse(seen[0], prefill(model, ids, np.arange(len(ids)), model.new_cache(len(ids), "f32"))) < EXACT


def test_gaps_of_recurrent_layers_keep_their_positions() -> None:
    pipeline, run = pair("qwen35"), options(0.2, scorer=RANDOM, state_gaps="decay")
    with first_logits() as seen:
        result = pipeline.run(document(), run, full=False)
    assert result.selection is not None
    index, model = result.selection.indices, pipeline.target.model
    want = prefill(model, result.prompt.ids[index], index, model.new_cache(len(index), "f32"), gaps="decay")
    assert nmse(seen[0], want) < EXACT


def test_a_prompt_longer_than_the_context_is_read_likewise() -> None:
    run = options(0.2, scorer=RANDOM)
    roomy = pair("gemma3").run(document(), run)
    with short_context(len(roomy.prompt) // 2) as pipeline:
        result = pipeline.run(document(), run)
        assert result.full is None
        assert result.answer.tokens == roomy.answer.tokens
        assert result.answer.trace.facts["window"].endswith(
            "it reads only the selected tokens, and no full prefill is possible"
        )


@pytest.mark.parametrize("recall", ["append", "rewind", "auto", "off"])
@pytest.mark.parametrize("drafter", ["qwen3", "qwen35"])
def test_turns_of_a_conversation_follow_the_selected_tokens(recall: str, drafter: str) -> None:
    memory = ConversationOptions(recall=recall, recall_tokens=64, recall_ratio=0.5)  # type: ignore[arg-type]
    talk = Conversation(pair("gemma3", drafter), options(0.4, scorer=RANDOM), memory)
    rng, recalled, history = np.random.default_rng(1), 0, [said("system", "one two")]
    with first_logits() as seen:
        for _ in range(4):
            history += [said("user", text(rng, 80)), said("assistant", "ok"), said("user", text(rng, 10))]
            result = talk.ask(history)
            check(talk, result)
            np.testing.assert_array_equal(talk.slots.positions, np.arange(len(talk.slots)))
            assert nmse(seen[-1], replayed(talk, result)) < EXACT
            recalled += result.usage.recalled
            history.append(said("assistant", result.answer.text))
    assert len(talk.slots) < len(talk.transcript)
    assert (recalled > 0) == (recall != "off")


def test_a_conversation_outgrows_the_context_as_long_as_its_cache_fits() -> None:
    rng, history = np.random.default_rng(1), list[dict[str, str]]()
    with short_context(700) as pipeline:
        talk = Conversation(pipeline, options(0.2, scorer=RANDOM), ConversationOptions(recall="off"))
        for _ in range(4):
            history += [said("user", text(rng, 100)), said("assistant", "ok"), said("user", text(rng, 4))]
            result = talk.ask(history)
            check(talk, result)
            history.append(said("assistant", result.answer.text))
    assert len(talk.transcript) > 700 > len(talk.slots)


def test_sessions_are_the_same_for_auto_and_what_it_means() -> None:
    """And not for other positions, at which the cache would be another."""
    talks, run = Conversations(pair("gemma3")), options(0.3, scorer=RANDOM)
    history = [said("user", text(np.random.default_rng(2), 120))]

    def ask(**changes: object) -> str:
        result = talks.answer(prompt_of(history, talks.pipeline.target), replace(run, **changes))  # type: ignore[arg-type]
        return result.match

    assert [ask(), ask(positions="contiguous"), ask(positions="original"), ask(positions="auto")] == [
        "miss", "hit", "miss", "hit",
    ]  # fmt: skip


@pytest.mark.parametrize("before", ["contiguous", "original"])
def test_files_of_sessions_are_restored_only_with_their_positions(before: str, tmp_path: Path) -> None:
    run, rng = options(0.3, scorer=RANDOM), np.random.default_rng(3)
    history = [said("user", text(rng, 120))]

    def process() -> Conversations:
        shelf = Shelf(tmp_path, 1 << 30, lasting(pair("gemma3")), lambda line: None)
        return Conversations(pair("gemma3"), shelf=shelf)

    first = process()
    result = first.answer(prompt_of(history, first.pipeline.target), replace(run, positions=before))
    first.close()
    history += [said("assistant", result.answer.text), said("user", text(rng, 60))]
    second = process()
    with first_logits() as seen:
        result = second.answer(prompt_of(history, second.pipeline.target), run)
        (entry,) = second._entries
        assert nmse(seen[-1], replayed(entry.talk, result)) < EXACT
    assert result.restored == (before == "contiguous")
    second.close()


def test_random_turns_with_restarts(tmp_path: Path) -> None:
    """Every turn of two clients is checked against a prefill of all that its cache holds."""
    counts = fuzz_turns.walk(25, 3, "gemma3", "qwen3", folder=tmp_path)
    assert counts["restored"] > 1
    assert counts["forks"]
