"""`sp run --decode` with a draft: the same answers, what is told of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from models.tiny_drafts import BLOCK, write_draft
from retriever_files import text_task

from sp import cli
from sp.decode import DDTree, DFlash, Greedy
from sp.decode.base import gather
from sp.errors import ConfigError
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.prompt import Prompt
from sp.session import Pipeline, RunOptions, load, request
from sp.session.answer import PrefilledAnswer

TASK = text_task(900, needles=4, seed=9)


@pytest.fixture(scope="module")
def pair(retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    return Pipeline(load(retriever_target, device="cpu"), load(retriever_drafter, extrapolate=True, device="cpu"))


@pytest.fixture(scope="module")
def draft_file(pair: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random draft that is fed by the last layer too."""
    config = pair.target.model.config
    return write_draft(tmp_path_factory.mktemp("draft"), "dflash", config, (0, config.layers - 1))


@pytest.mark.parametrize("compress", ["always", "off"])
def test_answers_do_not_depend_on_the_decoder(pair: Pipeline, draft_file: Path, compress) -> None:
    prompt = Prompt.from_document(TASK.document, TASK.question, pair.target.template, needle=TASK.needle)
    drafting, found = pair.with_speculator(draft_file), {}
    for decode in (Greedy(), DFlash(), DDTree(5, 3)):
        options = RunOptions(keep_ratio=0.3, compress=compress, decode=decode, max_new_tokens=12)
        found[decode] = drafting.run(prompt, options, full=False).answer
    tokens = {answer.tokens for answer in found.values()}
    assert len(tokens) == 1
    assert found[Greedy()].acceptance_length is None
    for decode in (DFlash(), DDTree(5, 3)):
        answer = found[decode]
        assert answer.acceptance_length == np.mean(answer.passes) >= 1
        ended = len(answer.tokens) < 12  # by a token that is counted, though no part of the answer
        assert sum(answer.passes) == len(answer.tokens) - 1 + ended


def test_with_a_draft_fixed_text_takes_nothing_from_the_document(pair: Pipeline, draft_file: Path) -> None:
    """A question of many tokens; and one without a document worth the name, which is read whole."""
    question = f"{text_task(1500, seed=3).document} {TASK.question}"
    prompt = Prompt.from_document(TASK.document, question, pair.target.template, needle=TASK.needle)
    options = RunOptions(keep_ratio=0.1, compress="always", decode=DDTree(5, 3), max_new_tokens=4)
    result = pair.with_speculator(draft_file).run(prompt, options, full=False)
    protected = result.prompt.mask("protected")
    assert protected.sum() > 0.5 * len(protected)
    assert 0 < result.selection.selected[~protected].sum() <= np.ceil(0.1 * (~protected).sum())
    short = Prompt.from_document("a", question, pair.target.template)
    whole = pair.with_speculator(draft_file).run(short, options, full=False)
    assert not whole.decision.activated
    assert whole.kept_tokens == len(whole.prompt)


def test_what_a_pass_gives_after_the_end_is_not_counted() -> None:
    begun = PrefilledAnswer(5, (token for token in (6, 7, 2, 8, 9)), passes=[1, 4])
    assert gather(begun.tokens(), frozenset({2})) == [5, 6, 7]
    assert begun.passes == [1, 2]


def test_sampled_answers_depend_on_the_seed_alone(pair: Pipeline, draft_file: Path) -> None:
    prompt = Prompt.from_document(TASK.document, TASK.question, pair.target.template)
    drafting, found = pair.with_speculator(draft_file), []
    for seed in (0, 0, 1, 2):
        options = RunOptions(compress="off", decode=DFlash(temperature=50.0), max_new_tokens=12, seed=seed)
        found.append(drafting.run(prompt, options, full=False).answer.tokens)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_combinations_that_cannot_be(pair: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="needs dense attention"):
        RunOptions(decode=DFlash(), target_sparse=FlashPrefill(alpha=0.1))
    prompt = Prompt.from_document(TASK.document, TASK.question, pair.target.template)
    tokenised = pair.tokenise(prompt)
    with pytest.raises(ConfigError, match="needs a draft model of the target"):
        pair.read(tokenised, np.ones(len(tokenised), bool), RunOptions(decode=DDTree()))
    monkeypatch.setattr(request, "score_tokens", None)  # nothing is read before it is refused
    with pytest.raises(ConfigError, match="needs a draft model of the target"):
        pair.run(prompt, RunOptions(compress="always", decode=DDTree()), full=False)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture
def command(retriever_target: Path, retriever_drafter: Path, tmp_path: Path) -> list[object]:
    """What all runs share."""
    text = tmp_path / "document.txt"
    text.write_text(TASK.document)
    pair = "--target", retriever_target, "--drafter", retriever_drafter, "--device", "cpu"
    asked = "--prompt-file", text, "--question", TASK.question, "--out", tmp_path / "out"
    return ["run", *pair, *asked, "--scorer", "tail", "--keep-ratio", 0.3, "--max-new-tokens", 12, "--no-full"]


def test_sp_run_with_a_tree(command, draft_file, tmp_path, monkeypatch, capsys) -> None:
    answers = []
    for extra in ([], ["--decode", "ddtree", "--speculator", draft_file, "--set", "decode.budget=4"]):
        assert call(monkeypatch, *command, "--json", *extra) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["answer"] == answers[1]["answer"] == TASK.answer
    assert answers[0]["acceptance_length"] is None
    assert answers[1]["acceptance_length"] >= 1
    trace = json.loads((tmp_path / "out" / "trace.json").read_text())
    assert "budget=4" in trace["options"]["decode"]
    assert (trace["draft"]["file"], trace["draft"]["block_size"]) == (draft_file.name, BLOCK)
    assert call(monkeypatch, *command, "--decode", "dflash", "--speculator", draft_file) == 0
    assert "tokens per pass of the target" in capsys.readouterr().out


BAD = [
    (["--decode", "ddtree"], "needs a draft model for target.gguf"),
    (["--speculator", "{draft}"], "--decode greedy is not speculative"),
    (["--decode", "ddtre", "--speculator", "{draft}"], "did you mean 'ddtree'"),
    (["--decode", "ddtree", "--speculator", "{draft}", "--set", "decode.budget=0"], "budget is 0"),
    (["--decode", "ddtree", "--speculator", "{draft}", "--set", "decode.budgt=4"], "did you mean 'budget'"),
    (["--decode", "greedy", "--set", "decode.budget=4"], "option of decoder greedy 'budget'; there are none"),
    (["--kv", "q4"], "kv is 'q4'; did you mean 'q4_0'? Known: 4bit, 5bit, f16, f32, q4_0, q5_0, q5_1, q8_0"),
    (["--kv", "k=q8_0"], "--kv: k=q8_0 names one side; pass both, as in k=q8_0,v=q4_0"),
    (["--kv", "k=q8_0,v=k5"], "--kv: the format of values is 'k5'"),
    (
        ["--kv", "5bit", "--no-rotate"],
        "KV format 5bit is designed for rotated keys and values; do not switch rotation off",
    ),
    (["--decode", "dflash", "--speculator", "{draft}", "--set", "decode.temperature=-1"], "temperature is -1"),
    (["--decode", "dflash", "--speculator", "{draft}", "--set", "target.alpha=0.2"], "needs dense attention"),
    (["--decode", "dflash", "--speculator", "{other}"], "hidden size"),
    (["--decode", "dflash", "--speculator", "{partial}"], "blk.1.attn_q.weight is missing"),
    (["--decode", "dflash", "--speculator", "{draft}x"], "no such file"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line(command, pair, draft_file, arguments, message, tmp_path, monkeypatch, capsys) -> None:
    config = pair.target.model.config
    (tmp_path / "o").mkdir()
    (tmp_path / "p").mkdir()
    names = {
        "draft": draft_file,
        "other": write_draft(tmp_path / "o", "dflash", config, (0, 1), embedding_length=config.hidden + 2),
        "partial": write_draft(tmp_path / "p", "dflash", config, (0, 1), drop=("blk.1.attn_q.weight",)),
    }
    assert call(monkeypatch, *command, *(argument.format(**names) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("sp: error: ")
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "out").exists()
