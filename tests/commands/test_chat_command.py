"""`sp chat`: pairs whose answers are known, lines piped in and typed, Ctrl-C, and what goes wrong told in one line."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import invoke

from sp import cli
from sp.commands import chat as loop
from sp.commands.chat import COMMANDS, ChatLoop, Session, piped_lines
from sp.models.synthetic import retriever
from sp.scoring import SCORERS
from sp.session import Conversation, Pipeline, RunOptions

SAID = "{% for m in messages %}{{ '\\n' if m.role == 'user' else '' }}{{ m.content }}{% endfor %}"
KEYS = {"QUARTZ": "8301947", "VELVET": "5520613"}
GIVEN = "--device cpu --keep-ratio 0.25 --compress always --kv f32 --max-new-tokens 7 --scorer tail[queries=3]"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retriever, "TEMPLATE", SAID)
        target = retriever.write_retriever(folder / "t.gguf", "retriever-qwen3", "q8_0", seed=12)
    return target, retriever.write_retriever(folder / "d.gguf", "retriever-qwen3", "q8_0", seed=11, code_dim=48)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two needles among letters."""
    rng = np.random.default_rng(1)
    words = ["".join(rng.choice(list("abcdefghijklmnop"), 4)) for _ in range(160)]
    for place, (key, value) in zip((40, 110), KEYS.items(), strict=True):
        words.insert(place, f"{key}{value}.")
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(words))
    return path


@pytest.fixture
def chat(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Calls `sp chat` with lines piped in: exit status, stdout, stderr."""

    def called(lines: str | bytes, *options: object) -> tuple[int, str, str]:
        raw = lines if isinstance(lines, bytes) else lines.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
        models = ["--target", files[0], "--drafter", files[1]]
        monkeypatch.setattr("sys.argv", ["sp", "chat", *map(str, (*models, *GIVEN.split(), *options))])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return called


def test_piped_lines_are_messages_and_rows(chat: Any, document: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "new" / "rows.jsonl", tmp_path / "picture.png"
    common = ["--load", document, "--recall-ratio", 0.3, "--out", out, "--picture", picture]
    lines = "now QUARTZ\n\nnow VELVET\n/recall\n/clear\nnow VELVET\n/quit\nnow QUARTZ\n"
    status, answers, told = chat(lines, *common, "--needle", "VELVET5520613.")
    assert status == 0
    assert answers.splitlines()[:2] == list(KEYS.values())
    assert answers.splitlines()[2] != KEYS["VELVET"], "what it rests on was forgotten"
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["conversation"], row["turn"], row["question"]) for row in rows] == [
        (1, 1, "now QUARTZ"), (1, 2, "now VELVET"), (2, 1, "now VELVET"),
    ]  # fmt: skip
    assert rows[0]["recalled"] == 0 < rows[1]["recalled"]
    assert KEYS["VELVET"] in "".join(each["text"] for each in rows[1]["recall"])
    assert rows[1]["new"] < 30 < rows[1]["cached"]
    assert "VELVET5520613" in told, "what /recall says"
    assert told.count("first token after") == 3
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_json_is_a_line_a_turn(chat: Any, document: Path) -> None:
    status, shown, _ = chat("now QUARTZ\nnow VELVET", "--load", document, "--json", "--recall", "off")
    first, second = map(json.loads, shown.splitlines())
    assert (status, first["answer"]) == (0, KEYS["QUARTZ"])
    assert second["recalled"] == 0
    assert second["answer"] != KEYS["VELVET"]
    assert first["kept"] == sum(b - a for a, b in first["spans"]["kept"]) < 0.3 * first["new"]


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        ("/fiel x", [], "unknown command 'fiel'; did you mean 'file' or 'help'?"),
        ("/file", [], "/file takes the path of a text file"),
        ("/recall twice", [], "recall"),
        (b"hello\xff", [], "line 1 of the input is not UTF-8 text (byte 5)"),
        ("", ["--load", "/nowhere/a.txt"], "cannot read /nowhere/a.txt"),
        ("", ["--picture", "a.jpg"], "must end in .png"),
        ("", ["--out", "/"], "is a folder"),
        ("", ["--out", "/dev/null/rows.jsonl"], "cannot write below"),
        ("", ["--recall", "twice"], "recall"),
        ("", ["--recall-ratio", 0], "recall_ratio must be above 0"),
        ("", ["--scorer", "lookahead"], "cannot reuse keys of earlier turns"),
        ("", ["--set", "decode.budget=4"], "budget"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_in_a_line(chat: Any, lines: str | bytes, options: list[object], said: str) -> None:
    status, shown, told = chat(lines, *options)
    assert (status, shown) == (2, "")
    assert told.startswith("sp: error: ")
    assert told.count("\n") == 1
    assert said in told


@pytest.fixture
def session(files: tuple[Path, Path], document: Path) -> Session:
    options = RunOptions(0.25, SCORERS.build("tail", {"queries": 3}), compress="always", kv="f32", max_new_tokens=7)
    found = Session(Conversation(Pipeline.open(*files, device="cpu"), options))
    found.add(document.read_text())
    return found


def test_somebody_who_types_goes_on_after_what_went_wrong(
    session: Session, document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ChatLoop(session).run(["/file /nowhere", "/help", "/what", "  /now is a message QUARTZ", "/recall", "/recall off"])
    shown = capsys.readouterr()
    assert shown.out == f"{KEYS['QUARTZ']}\n"
    assert shown.err.count("sp: error:") == 2
    assert all(f"  /{name} " in shown.err for name in COMMANDS)
    assert "no passage was restored" in shown.err
    assert session.conversation.memory.recall == "off"
    before = session.turns
    session.add(document.read_text())
    ChatLoop(session).run(["/clear"])
    assert (len(before), session.turns, len(session.conversation.transcript)) == (2, [], 0)


@contextmanager
def interrupting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar under which somebody hits Ctrl-C while the target reads."""
    if what == "target prefill":
        signal.raise_signal(signal.SIGINT)
    yield lambda done: None


def test_ctrl_c_while_models_read_takes_the_message_back(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "progress_bar", interrupting)
        ChatLoop(session).run(["now QUARTZ"])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "the message was dropped" in shown.err
    assert (session.turns, session.rows) == ([], [])
    assert signal.getsignal(signal.SIGINT) is before
    ChatLoop(session).run(["now VELVET"])  # the file still waits
    assert capsys.readouterr().out == f"{KEYS['VELVET']}\n"


def test_ctrl_c_ends_an_answer(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show = ChatLoop._show

    def pressed(self: ChatLoop, stop: Any, thought: str, said: str) -> bool:
        if len(session.turns) == 0 and said == "0":
            signal.raise_signal(signal.SIGINT)
        return show(self, stop, thought, said)

    monkeypatch.setattr(ChatLoop, "_show", pressed)
    ChatLoop(session).run(["now QUARTZ", "now QUARTZ"])
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["830", KEYS["QUARTZ"]]
    assert [line.endswith("stopped]") for line in shown.err.splitlines()] == [True, False]


def test_ctrl_c_twice_ends_the_program(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(self: ChatLoop, stop: Any, thought: str, said: str) -> bool:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return False

    monkeypatch.setattr(ChatLoop, "_show", pressed)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        ChatLoop(session).run(["now QUARTZ"])
    assert signal.getsignal(signal.SIGINT) is before


def test_lines_end_as_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\r\ntwo\n\nthree")))
    assert list(piped_lines()) == ["one", "two", "", "three"]


def test_a_model_without_a_chat_template_is_told_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("work has begun")

    monkeypatch.setattr(loop, "open_pair", opened)
    monkeypatch.setattr("sp.gguf.template.KEY", "none")
    found = str(invoke(["chat"]).exception)
    assert found.startswith("target.gguf has no chat template, which sp chat needs")
