"""A prompt that the target's window is too short for: compressed into it where possible, else refused unread."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from retriever_files import TextTask, text_task

from sp import cli
from sp.errors import PromptError
from sp.models.run import chunked
from sp.prompt import Prompt, Span, TokenisedPrompt, Transfer
from sp.scoring import SCORERS
from sp.selection import SELECTORS
from sp.serve.messages import RequestStats, usage
from sp.session import Conversation, Pipeline, RunOptions, RunResult, load, request
from sp.session.decision import FRAME, Fit, decide, fit, may_be_over
from sp.session.device.memory_manager import MemoryManager
from sp.studies.pages import run_report

SELECTOR = SELECTORS.build("top_chunks", {"chunk_size": 32, "neighbours": 1, "sink": 8, "tail": 8})
OPTIONS = RunOptions(keep_ratio=0.15, scorer="tail", selector=SELECTOR, max_new_tokens=8)
WINDOW = 950


@pytest.fixture(scope="module")
def task() -> TextTask:
    return text_task(3000, needles=10, seed=4)


@pytest.fixture(scope="module")
def pair(retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    """A target whose window is less than half of the prompt."""
    target = load(retriever_target, device="cpu")
    target.model.config = replace(target.model.config, context=WINDOW)
    return Pipeline(target, load(retriever_drafter, extrapolate=True, device="cpu"))


@pytest.fixture(scope="module")
def roomy(retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    """The same without a bound."""
    return Pipeline(load(retriever_target, device="cpu"), load(retriever_drafter, extrapolate=True, device="cpu"))


def prompt_of(task: TextTask, pair: Pipeline) -> Prompt:
    return Prompt.from_document(task.document, task.question, pair.target.template, needle=task.needle)


def run(pair: Pipeline, task: TextTask, **changes: Any) -> RunResult:
    return pair.run(prompt_of(task, pair), replace(OPTIONS, **changes), full=True)


@pytest.mark.parametrize("compress", ["auto", "always"])
@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_what_is_kept_of_a_long_prompt_is_answered(
    pair: Pipeline, task: TextTask, compress: Any, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    check = chunked.check_context

    def note(model: Any, positions: Any) -> None:
        if model is pair.target.model:
            seen.append(int(np.max(positions)))
        check(model, positions)

    monkeypatch.setattr(chunked, "check_context", note)
    result = run(pair, task, compress=compress, threshold=threshold)
    assert len(result.prompt) > 2 * WINDOW
    assert result.decision.activated
    assert result.answer.text == task.answer
    assert result.full is None
    assert seen[0] == result.kept_tokens - 1  # contiguous from 0 on
    assert result.answer.trace.facts["window"] == (
        f"the prompt has {len(result.prompt)} tokens and the answer up to 8, but target.gguf has a context of "
        f"{WINDOW}: it reads only the selected tokens, at contiguous positions, and no full prefill is possible"
    )
    assert usage(result, RequestStats(), RunOptions())["sp"]["window"] == result.answer.trace.facts["window"]
    if compress == "auto":
        assert result.decision.reason == "the whole prompt does not fit the target's window"


def test_the_same_tokens_at_positions_asked_for_give_the_same_answer(pair: Pipeline, task: TextTask) -> None:
    asked, found = (run(pair, task, positions=where) for where in ("contiguous", "original"))
    assert asked.answer.tokens == found.answer.tokens
    assert "at contiguous positions" not in asked.answer.trace.facts["window"]


def test_a_prompt_that_fits_stands_where_it_stood(pair: Pipeline) -> None:
    short = text_task(700, needles=3, seed=4)
    result = run(pair, short, compress="always", keep_ratio=0.5)
    assert len(result.prompt) + 8 <= WINDOW
    assert result.full is not None
    assert "window" not in result.answer.trace.facts
    assert run_report.summary(result, {})["window"] is None


REFUSED = [
    ({"compress": "off"}, "compress the prompt with a drafter, shorten it or lower --max-new-tokens"),
    ({"keep_ratio": 1.0}, r"--keep-ratio 1 leaves \d+ of them, which do not fit either"),
    ({"keep_ratio": 0.6}, r"--keep-ratio 0.6 leaves \d+ of them, which do not fit either: lower it, shorten"),
    ({"max_new_tokens": 1100}, "--keep-ratio 0.15 leaves"),
    ({"state_gaps": "reset"}, "state_gaps reset needs their original positions; omit it"),
    ({"scorer": SCORERS.build("target_attention")}, "use a drafter-based scorer"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
@pytest.mark.parametrize("ahead", [False, True])
def test_what_cannot_fit_is_refused_before_anything_is_read(
    pair: Pipeline, task: TextTask, changes: dict[str, Any], message: str, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "score_tokens", unread)
    monkeypatch.setattr(request, "finish", unread)
    if ahead:  # as on the device, where the drafter need not wait for the target's tokens
        monkeypatch.setattr(Pipeline, "overlaps_tokenising", lambda self, options: options.compress != "off" and not (
            options.scorer.reads_target or options.state_gaps != "compact"))  # fmt: skip
    with pytest.raises(PromptError, match=message) as caught:
        run(pair, task, **changes)
    assert str(caught.value).startswith("the prompt has ")
    assert f"target.gguf has a context of {WINDOW}" in str(caught.value)
    assert "\n" not in str(caught.value)


def unread(*_: Any, **__: Any) -> Any:
    raise AssertionError("a model was to read")


def test_without_a_drafter_the_whole_prompt_must_fit(pair: Pipeline, task: TextTask) -> None:
    with pytest.raises(PromptError, match="compress the prompt with a drafter"):
        run(Pipeline(pair.target), task)


def test_drafting_ahead_goes_on_where_the_prompt_surely_fits(pair: Pipeline, task: TextTask, monkeypatch: Any) -> None:
    monkeypatch.setattr(Pipeline, "overlaps_tokenising", lambda self, options: True)
    result = run(pair, task, compress="always")
    names = [stage.name for stage in result.answer.trace.stages]
    assert names.index("score") < names.index("tokenise")
    result = run(pair, task, compress="always", keep_ratio=0.4)  # fits, but not if there were twice as many tokens
    names = [stage.name for stage in result.answer.trace.stages]
    assert names.index("tokenise") < names.index("score")
    assert result.answer.text == task.answer


def test_the_way_of_scores_is_found_beside_where_drafting_goes_ahead(
    pair: Pipeline, task: TextTask, monkeypatch: Any
) -> None:
    threads, between = [], Transfer.between

    def noted(source: Any, target: Any) -> Transfer:
        threads.append(threading.current_thread().name)
        return between(source, target)

    monkeypatch.setattr(Transfer, "between", noted)
    want = run(pair, task, compress="always")
    assert threads == ["MainThread"]
    monkeypatch.setattr(Pipeline, "overlaps_tokenising", lambda self, options: True)
    result = run(pair, task, compress="always")
    assert threads[1:] == ["sp-tokenise_0"]
    np.testing.assert_array_equal(result.scores, want.scores)


def test_the_edges(pair: Pipeline) -> None:
    assert fit(pair.target, WINDOW - 8, OPTIONS, True) == Fit(True, "original")
    assert not fit(pair.target, WINDOW - 7, OPTIONS, True).whole
    most = (WINDOW - 8) * 4
    options = replace(OPTIONS, keep_ratio=0.25)
    assert fit(pair.target, most, options, True).positions == "contiguous"
    with pytest.raises(PromptError, match=f"leaves {WINDOW - 7} of them"):
        fit(pair.target, most + 1, options, True)
    for nbytes, over in ((most - 4 * FRAME, False), (most - 4 * FRAME + 1, True)):  # which is kept in any case
        drafted = Prompt("a" * nbytes).tokenise(pair.target.tokenizer)
        assert may_be_over(pair.target, drafted, options) == over
        assert not fit(pair.target, nbytes, options, True).whole  # a token a byte


def test_what_must_be_kept_is_reckoned_with_too(pair: Pipeline) -> None:
    text = "a b " * 300
    for end, over in ((4, False), (900, True), (len(text), True)):  # 900 bytes and a seventh of the rest
        drafted = Prompt(text, (Span("protected", 0, end),)).tokenise(pair.target.tokenizer)
        assert may_be_over(pair.target, drafted, OPTIONS) == over


def test_a_drafter_of_few_tokens_reads_nothing_of_what_cannot_fit(
    pair: Pipeline, task: TextTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vocabulary with a quarter of the target's tokens, as one of long words: twice as many would fit."""
    monkeypatch.setattr(Pipeline, "overlaps_tokenising", lambda self, options: True)
    monkeypatch.setattr(request, "tokenise_for_drafter", lambda prompt, *_: coarse(prompt, pair))
    monkeypatch.setattr(request, "score_tokens", unread)
    n = len(prompt_of(task, pair).tokenise(pair.target.tokenizer))
    few = len(coarse(prompt_of(task, pair), pair))
    keep = 1.1 * (WINDOW - 8) / n
    assert 2 * few * keep < WINDOW - 8
    with pytest.raises(PromptError, match="which do not fit either"):
        run(pair, task, compress="always", keep_ratio=keep)


def coarse(prompt: Prompt, pair: Pipeline) -> TokenisedPrompt:
    """Four tokens of the target as one."""
    fine = prompt.tokenise(pair.target.tokenizer)
    return TokenisedPrompt(prompt, fine.ids[::4], np.stack([fine.bytes[::4, 0], np.append(fine.bytes[4::4, 0],
                           fine.bytes[-1, 1])], axis=1))  # fmt: skip


def cache_bytes(pair: Pipeline, tokens: int, kv: str) -> int:
    return pair.target.model.new_cache(tokens, kv).nbytes


@pytest.mark.parametrize("kv", ["f16", "q4_0"])
@pytest.mark.parametrize("full", [False, True])
def test_a_budget_holds_weights_and_the_very_cache(
    roomy: Pipeline, task: TextTask, kv: Any, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "score_tokens", unread)
    monkeypatch.setattr(request, "finish", unread)
    options = replace(OPTIONS, compress="always", kv=kv)
    prompt = prompt_of(task, roomy)
    tokenised = prompt.tokenise(roomy.target.tokenizer)
    n, fixed = len(tokenised), int(tokenised.mask("protected").sum())
    tokens = n if full else fixed + int(np.ceil(0.15 * (n - fixed)))
    least = roomy.target.model.nbytes + cache_bytes(roomy, tokens + 8, kv)
    assert roomy.drafter is not None
    assert (
        least > roomy.drafter.model.nbytes + 4 * roomy.drafter.model.config.hidden * n
    )  # it is the target's that counts
    enough, less = (replace(roomy, memory_manager=MemoryManager(budget)) for budget in (least, least - 1))
    enough.check(prompt, options, full=full)
    for ask in (less.check, less.run):
        with pytest.raises(
            PromptError, match=f"{tokens} tokens read by target.gguf .* at least, and the budget is"
        ) as it:
            ask(prompt, options, full=full)
        assert ("--no-full" in str(it.value)) == full
        assert "\n" not in str(it.value)


def test_a_drafter_that_no_budget_holds_scores_nothing(
    roomy: Pipeline, task: TextTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert roomy.drafter is not None
    drafter, prompt = roomy.drafter.model, prompt_of(task, roomy)
    options = replace(OPTIONS, compress="always")
    monkeypatch.setattr(drafter, "nbytes", 1 << 40)
    small = replace(roomy, memory_manager=MemoryManager(1 << 39))
    tokenised = small.tokenise(prompt)
    for ask in (small.check, small.run, lambda *_, **__: small.score(tokenised, options)):
        with pytest.raises(PromptError, match=r"scored by drafter.gguf take 1024\.\d\d GiB at least, and the"):
            ask(prompt, options, full=False)
    small.check(prompt, replace(options, scorer="lexical"), full=False)  # which reads with no model


def test_check_says_what_run_says(pair: Pipeline, task: TextTask) -> None:
    prompt = prompt_of(task, pair)
    pair.check(prompt, OPTIONS)
    for changes, message in REFUSED:
        with pytest.raises(PromptError, match=message):
            pair.check(prompt, replace(OPTIONS, **changes))
    pair.check(prompt, replace(OPTIONS, compress="always", keep_ratio=0.001))
    everything = replace(prompt, spans=(Span("protected", 0, len(prompt.text.encode())),))
    with pytest.raises(PromptError, match=r"which do not fit either: shorten the \d+ protected ones or"):
        pair.check(everything, replace(OPTIONS, compress="always", keep_ratio=0.001))


def test_a_conversation_that_cannot_fit_drafts_nothing(
    pair: Pipeline, task: TextTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "score_tokens", unread)
    cases: list[tuple[Any, float, str]] = [("original", 0.05, "positions contig"), ("contiguous", 0.5, "lower --keep")]
    for positions, keep, advice in cases:
        talk = Conversation(pair, replace(OPTIONS, compress="always", keep_ratio=keep, positions=positions))
        with pytest.raises(PromptError, match=f"context of {WINDOW}; shorten the transcript, or .*{advice}") as caught:
            talk.answer(prompt_of(task, pair))
        assert "\n" not in str(caught.value)
        assert len(talk.transcript) == 0
    tight = replace(pair, memory_manager=MemoryManager(pair.target.model.nbytes))
    with pytest.raises(PromptError, match="and the budget is"):
        Conversation(tight, replace(OPTIONS, compress="always")).answer(Prompt("a b c d e f g h"))


def test_a_prompt_that_does_not_fit_is_compressed_whatever_it_costs(pair: Pipeline) -> None:
    assert pair.drafter is not None
    configs = pair.target.model.config, pair.drafter.model.config
    given: dict[str, Any] = {"tokens": 3000, "protected": 10, "keep_ratio": 0.15}
    assert not decide(*configs, **given, compress="auto", threshold=9000).activated
    assert decide(*configs, **given, compress="auto", threshold=9000, fits=False).activated
    assert not decide(*configs, **given, compress="off", fits=False).activated


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_command_says_so(
    pair: Pipeline, task: TextTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sp.commands.run.open_pair", lambda *_, **__: pair)
    (text := tmp_path / "text.txt").write_text(task.document)
    given = ["run", "--prompt-file", text, "--question", task.question, "--keep-ratio", 0.15, "--out", tmp_path / "o"]
    given += ["--device", "cpu", "--max-new-tokens", 8, "--set", "selector.chunk_size=32"]
    assert call(monkeypatch, *given) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"has a context of {WINDOW}: it reads only the selected tokens, at contiguous positions" in shown
    assert call(monkeypatch, *given, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["full_ttft_s"] is None
    assert report["window"].endswith("no full prefill is possible")
    assert json.loads((tmp_path / "o" / "trace.json").read_text())["window"] == report["window"]
    assert call(monkeypatch, *given, "--compress", "off") == 2
    error = capsys.readouterr().err
    assert error.startswith("sp: error: the prompt has ")
    assert error.count("\n") == 1


def test_the_command_reads_nothing_of_what_cannot_fit(
    pair: Pipeline, task: TextTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not for a warm-up either, which drafts an eighth of the prompt."""
    question = f"{task.question} {task.document[:1600]}"
    monkeypatch.setattr("sp.commands.run.open_pair", lambda *_, **__: pair)
    monkeypatch.setattr(request, "score_tokens", unread)
    monkeypatch.setattr(request, "finish", unread)
    (text := tmp_path / "text.txt").write_text(task.document)
    given = ["run", "--prompt-file", text, "--question", task.question, "--out", tmp_path / "o", "--device", "cpu"]
    for options in (["--compress", "off"], ["--keep-ratio", 0.9], ["--keep-ratio", 0.001, "--question", question]):
        assert call(monkeypatch, *given, *options) == 2
        error = capsys.readouterr().err
        assert error.startswith("sp: error: the pro")
        assert error.count("\n") == 1
    assert not (tmp_path / "o").exists()
