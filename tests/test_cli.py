"""The command line: what it prints and writes, and one line with exit status 2 for whatever is wrong."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest
from command_line import commands
from retriever_files import text_task

from sp import cli

KEYS = {
    "answer", "activated", "reason", "prompt_tokens", "kept_tokens", "keep_ratio", "ttft_s", "full_ttft_s",
    "stages", "peak_bytes", "files",
}  # fmt: skip


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(text_task(1200, needles=6, seed=8).document, "utf-8")
    return path


@pytest.fixture
def models(retriever_target: Path, retriever_drafter: Path) -> list[str]:
    return ["--target", str(retriever_target), "--drafter", str(retriever_drafter)]


def test_run_as_json_has_the_documented_keys_and_files(
    text: Path, models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task, out = text_task(1200, needles=6, seed=8), tmp_path / "out"
    status = call(
        monkeypatch, "run", *models, "--prompt-file", text, "--question", task.question, "--needle", task.needle,
        "--scorer", "tail", "--keep-ratio", 0.2, "--compress", "always", "--out", out, "--json",
        "--set", "selector.sink=8",
    )  # fmt: skip
    assert status == 0
    run = json.loads(capsys.readouterr().out)
    assert run.keys() >= KEYS
    assert run["answer"] == run["full_answer"] == task.answer
    assert run["needle_recall"] == 1
    assert {stage["name"] for stage in run["stages"]} >= {"score", "select", "target prefill"}
    assert sum(stage["share"] for stage in run["stages"]) == pytest.approx(1)
    assert sorted(path.name for path in out.iterdir() if path.name[0] != ".") == [
        "importance.png", "report.html", "trace.json", "trace.safetensors",
    ]  # fmt: skip
    assert (out / "importance.png").read_bytes().startswith(b"\x89PNG")
    trace = json.loads((out / "trace.json").read_text())
    assert trace["options"]["keep_ratio"] == 0.2
    assert {span["kind"] for span in trace["spans"]} == {"protected", "question", "needle", "plain"}
    from safetensors.numpy import load_file

    arrays = load_file(out / "trace.safetensors")
    assert arrays["kept"].sum() == run["kept_tokens"]
    assert len(arrays["scores"]) == run["prompt_tokens"]
    assert task.needle in re.sub(r"<[^>]*>", "", (out / "report.html").read_text())


def test_run_prints_stages_answer_and_reason(
    text: Path, models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = text_task(1200, needles=6, seed=8)
    arguments = ["--prompt-file", text, "--question", task.question, "--keep-ratio", 0.2, "--out", tmp_path / "out"]
    assert call(monkeypatch, "run", *models, *arguments, "--compress", "always", "-v") == 0
    shown = capsys.readouterr().out
    for piece in ("target prefill", "seconds", "share", task.answer, "Compression was active", "Peak memory"):
        assert piece in shown
    assert call(monkeypatch, "run", *models, *arguments, "--compress", "off") == 0
    shown = capsys.readouterr().out
    assert "Compression was not active: compression is switched off" in shown
    assert "target prefill" not in shown, "stages stand there only with -v"
    *_, answer, seconds = shown.splitlines()
    assert answer.split() == ["Answer", *task.answer.split()]
    assert seconds.startswith("Time to first token  ")
    assert not (tmp_path / "out" / "importance.png").exists()


@pytest.mark.parametrize(
    ("selector", "settings"),
    [
        ("sentence", ["neighbours=by_length", "longest=40"]),
        ("alpha", ["of=mean", "alpha=3"]),
        ("token_budget", ["tokens=200", "min_run=48"]),
    ],
)
def test_selectors_run_by_name_and_report_what_they_kept(
    selector: str,
    settings: list[str],
    text: Path,
    models: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task, out = text_task(1200, needles=6, seed=8), tmp_path / "out"
    status = call(
        monkeypatch, "run", *models, "--prompt-file", text, "--question", task.question, "--needle", task.needle,
        "--keep-ratio", 0.3, "--compress", "always", "--no-full", "--out", out, "--scorer", "tail",
        "--selector", selector,
        *(piece for setting in settings for piece in ("--set", f"selector.{setting}")),
    )  # fmt: skip
    assert status == 0
    shown = " ".join(capsys.readouterr().out.split())
    from safetensors.numpy import load_file

    arrays = load_file(out / "trace.safetensors")
    kept = arrays["kept"]
    assert f"{kept.sum():,} of {len(kept):,} tokens, realised keep ratio {kept.mean():.4f}" in shown
    fixed = next(at for at in range(len(kept)) if not kept[len(kept) - at - 1])  # question and markup, on top
    assert kept[: len(kept) - fixed].sum() <= 0.3 * len(kept) + 32
    assert "Needle kept 100 %" in shown
    assert (out / "importance.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep-ratio", "0"], "keep_ratio must be above 0"),
        (["--keep-ratio", "1.5"], "at most 1, not 1.5"),
        (["--keep-ratio", "nan"], "--keep-ratio must be a finite number"),
        (["--keep-ratio", "abc"], "--keep-ratio"),
        (["--scorer", "tial"], "did you mean 'tail'"),
        (["--selector", "top_chunk"], "did you mean 'top_chunks'"),
        (["--selector", "top_p", "--set", "selector.p=2"], "p must be above 0 and at most 1, not 2"),
        (["--selector", "alpha", "--set", "selector.of=men"], "did you mean 'mean'"),
        (["--set", "selector.backbone=1"], "backbone must be at least 0 and below 1"),
        (["--scorer", "tail", "--set", "scorer.querys=3"], "did you mean 'queries'"),
        (["--set", "queries=3"], "scorer.NAME=VALUE"),
        (["--set", "scorer.queries=["], "--set scorer.queries"),
        (["--kv", "q5_2"], "Known: 4bit, 5bit, f16, f32, q4_0, q5_0, q5_1, q8_0"),
        (["--positions", "original", "--mapping", "text_rejoin"], "positions contiguous"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be at least 1, not 0"),
        (["--max-new-tokens", "12q"], "--max-new-tokens is a number of tokens such as 512, 8k or 1m, not '12q'"),
        (["--set", "scorr.queries=3"], "unknown group of --set 'scorr'; did you mean 'scorer' or"),
        (["--scorer", "tail[querys=3]"], "did you mean 'queries'"),
        (["--decode", "ddtree", "--set", "decode.bugdet=3"], "did you mean 'budget'? Known: budget, chain_seed, top_k"),
        (["--set", "target.alhpa=3"], "did you mean 'alpha'? Known: alpha, last_n"),
        (["--prompt-file", "{folder}/absent.txt", "--question", "Q?"], "No such file"),
        (["--prompt-file", "{folder}", "--question", "Q?"], "cannot read"),
        (["--prompt-file", "{text}"], "question is missing"),
        (["--prompt-file", "{text}", "--question", " "], "--question is empty"),
        (["--prompt-file", "{empty}", "--question", "Q?"], "prompt is empty"),
        (["--prompt-file", "{binary}", "--question", "Q?"], "not UTF-8"),
        (["--prompt-file", "{text}", "--question", "Q?", "--needle", "absent"], "needle is not a part"),
        (["--prompt-file", "{text}", "--question", "Q?", "--target", "{text}"], "GGUF"),
        (["--prompt-file", "{text}", "--question", "Q?", "--target", "{truncated}"], "truncated.gguf"),
        (["--prompt-file", "{text}", "--question", "Q?", "--drafter", "{folder}/no.gguf"], "no such file"),
        (["--prompt-file", "{text}", "--question", "Q?", "--max-new-tokens", "9999999"], "context of"),
        (["--prompt-file", "{text}", "--question", "Q?", "--scorer", "oracle", "--compress", "always"], "known needle"),
        (["--drafter-rope", "yarn"], "takes none, linear:FACTOR or yarn:FACTOR, as in yarn:4; got 'yarn'"),
        (["--target-rope", "yarn:1"], "--target-rope yarn:1: the factor must be above 1"),
        (["--precision", "int4"], "--precision is 'int4'; did you mean 'int8'? Known: auto, bf16, fp8, int8"),
        (["--drafter-precision", "f8"], "--drafter-precision is 'f8'; did you mean 'fp8'"),
        (["--nonsense"], "--nonsense"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str],
    message: str,
    text: Path,
    models: list[str],
    retriever_drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "truncated.gguf").write_bytes(retriever_drafter.read_bytes()[:5000])
    names = {
        "folder": tmp_path, "text": text, "empty": tmp_path / "empty.txt", "binary": tmp_path / "binary.txt",
        "truncated": tmp_path / "truncated.gguf",
    }  # fmt: skip
    filled = [argument.format(**names) for argument in arguments]
    out = tmp_path / "out"
    assert call(monkeypatch, "run", *models, "--out", out, "--keep-ratio", "0.3", *filled) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("sp: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not out.exists(), "a refused run wrote something"


def test_inspect_and_synth_round_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.gguf"
    assert call(monkeypatch, "synth", "--shape", "tiny-qwen35", "--type", "q4_k_m", "-o", path, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["bytes"] == path.stat().st_size
    assert call(monkeypatch, "inspect", path, "--json") == 0
    info = json.loads(capsys.readouterr().out)
    assert info["architecture"] == "qwen35"
    assert {row["type"] for row in info["tensors_by_type"]} == {"Q4_K", "Q6_K", "F32"}
    assert call(monkeypatch, "inspect", path) == 0
    shown = capsys.readouterr().out
    assert "Q4_K" in shown
    assert shown.splitlines()[-1] == info["command"]  # on one line, to be copied


MULTIPLYING = (
    ["serve"],
    ["chat"],
    ["eval", "needle"],
    ["bench", "model", "x.gguf"],
    ["bench", "drafter"],
    ["bench", "ttft"],
    ["bench", "turn"],
)
"""Commands that read prompts with a model, besides `sp run`."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["synth", "--shape", "qwen3-0.7b", "-o", "x.gguf"], "did you mean 'qwen3-0.6b'"),
        (["synth", "--shape", "tiny-qwen3", "--type", "q9", "-o", "x.gguf"], "q8_0"),
        (["synth", "--shape", "tiny-qwen3", "-o", "/dev/null/x.gguf"], "cannot write below /dev/null"),
        (["inspect", "absent.gguf"], "no such file"),
        (["inspect", "."], "sp: error"),
        (["run", "--out", "/dev/null/out"], "check the path given to --out"),
        (["bench", "model", "x.gguf", "--record", "/dev/null/out"], "check the path given to --record"),
        (["bench", "drafter", "--record", "/dev/null/out"], "check the path given to --record"),
        (["bench", "ttft", "--plots", "/dev/null/out"], "check the path given to --plots"),
        (["bench", "ttft", "--target-rope", "longrope:4"], "--target-rope takes none, linear:FACTOR or yarn:FACTOR"),
        (["serve", "--drafter-rope", "linear:x"], "--drafter-rope linear:x: the factor must be above 1"),
        *(([*command, "--precision", "int7"], "--precision is 'int7'; did you mean 'int8'") for command in MULTIPLYING),
        (["bench", "decode", "--record", "/dev/null/out"], "check the path given to --record"),
        (["bench", "decode", "--trace", "/dev/null/out.json"], "check the path given to --trace"),
        (["nonsense"], "nonsense"),
    ],
)
def test_other_commands_refuse_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "rows.jsonl")

    monkeypatch.setattr("sp.planning.inspect.inspect_file", full)
    assert call(monkeypatch, "inspect", "x.gguf") == 2
    error = capsys.readouterr().err
    assert error == "sp: error: rows.jsonl: No space left on device; the command did not complete\n"


def test_help_and_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch) == 0
    assert "Speculative prefill" in capsys.readouterr().out
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("sp ")
    for command in ("run", "inspect", "synth"):
        assert call(monkeypatch, command, "--help") == 0
        assert "Example" in capsys.readouterr().out


def test_help_has_examples_and_shows_brackets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    bracketed = 0
    for words, command in commands().items():
        assert call(monkeypatch, *words, "--help") == 0
        shown = capsys.readouterr().out
        assert "Examples:\n  sp " in shown, words
        told = " ".join([*command.help_parts[1], *(one.field.description for one in command.options)])
        for piece in re.findall(r"\[[a-z_]+=[^]]*\]", told):
            assert piece in shown, (words, piece)
            bracketed += 1
        for one in command.options:
            assert one.field.description, (words, one.name)
            assert all(flag in shown for flag in (*one.flags, *one.switches)), (words, one.name)
    assert bracketed > 5


def test_the_command_line_only_registers_what_has_a_file_of_its_own() -> None:
    for words, command in commands().items():
        home = command.function.__module__
        assert home.startswith(f"sp.commands.{words[0]}"), words
        assert cli.summary(" ".join(words)) == command.help_parts[0].partition("\n")[0]


def test_commands_of_eval_share_their_options_with_defaults_of_their_own() -> None:
    found = commands()
    options = [
        {one.dest: one.field.value for one in found["eval", name].options} for name in ("needle", "ruler", "ppl")
    ]
    shared = [[name for name in each if name.startswith("evaluation.")] for each in options]
    assert shared[0] == shared[1] == shared[2]
    assert [each["evaluation.keep_ratio"] for each in options] == ["0.05,0.1", "0.1", "0.1,0.3,0.5"]
    assert {f"evaluation.{name}" for name in ("scorer", "models.target", "run.kv", "thinking.mode")} <= {*shared[0]}


def test_a_new_field_is_an_option_everywhere_without_a_further_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if `RunOptions` had one more: a flag of the commands, a key of sweeps, a field of requests, a row of pages."""
    code = """
        import dataclasses, sp.session.options as home
        old = home.RunOptions
        @dataclasses.dataclass(frozen=True)
        class RunOptions(old):
            '''More.

            Parameters
            ----------
            novelty : int
                What is new.
            '''
            novelty: int = 7
        RunOptions.__module__ = old.__module__
        home.RunOptions = RunOptions
        import sp.session
        sp.session.RunOptions = RunOptions
        from sp import cli
        from sp.commands.list import sections
        from sp.commands.run import run
        from sp.serve.options import Defaults, options_of, overrides_of
        from sp.studies.sweep.sweep import CELL_KEYS
        for words in ("run", "chat", "serve", "eval needle", "bench ttft"):
            command = cli.command_of(words)
            assert "--novelty" in command.help, words
            assert [v for k, v in command.parse(["--novelty", "9"]).items() if k.endswith("novelty")] == [9], words
        assert "novelty" in CELL_KEYS
        assert "novelty" in {each.name for each in sections()["cells"][1]}
        assert options_of({}, overrides_of({"novelty": 9}), Defaults()).novelty == 9
    """
    import subprocess
    import sys
    import textwrap

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_package_runs_as_the_command_does() -> None:
    """`python -m sp` is the command: its help, and one line for what is wrong."""
    import subprocess
    import sys

    told = subprocess.run(
        [sys.executable, "-m", "sp", "inspect", "no.gguf"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert told.stderr.startswith("sp: error: ")
    assert told.stderr.count("\n") == 1
