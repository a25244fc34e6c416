"""The drafter of a target that comes without one: the embedded target's own, else the best that was fetched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import sp
from sp import cli
from sp.errors import ConfigError, GGUFError
from sp.hub import KNOWN, KnownModel
from sp.scoring import SCORERS
from sp.session import Pipeline, embedded
from sp.session.loaded import default_drafter
from sp.studies.sweep.sweep import load_sweep

GET = (
    r"^mine.gguf needs a drafter that scores prompts, and none was found; fetch one with: sp get smollm2-135m, or pass"
)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target of one's own, beside an empty cache."""
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    return Path(shutil.copy(embedded("target"), tmp_path / "mine.gguf"))


@pytest.fixture
def fetched(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A drafter in the cache, under the name of a known model."""
    path = tmp_path / "cache" / "models" / "smollm2-135m.gguf"
    path.parent.mkdir(parents=True)
    shutil.copy(embedded("drafter"), path)
    here = KnownModel("smollm2-135m", "A test", "MIT", (), path.stat().st_size, "", drafts=True)
    monkeypatch.setitem(KNOWN, here.name, here)  # type: ignore[arg-type]
    return path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr("sys.argv", ["sp", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_the_embedded_target_has_the_embedded_drafter(fetched: Path, tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(embedded("target"))
    assert default_drafter(None) == default_drafter(embedded("target")) == embedded("drafter")
    assert default_drafter(tmp_path / "link.gguf") == embedded("drafter")


def test_without_a_fetched_one_the_command_is_told(mine: Path, tmp_path: Path) -> None:
    for open_pair in (lambda: sp.load(mine), lambda: Pipeline.open(str(mine), device="cpu")):
        with pytest.raises(ConfigError, match=GET):
            open_pair()
    with pytest.raises(GGUFError, match="no such file"):  # what is wrong with the target comes first
        sp.load(tmp_path / "absent.gguf")
    with pytest.raises(GGUFError, match=r"fetch it with: sp get smollm2-135m$"):
        sp.load("smollm2-135m")


def test_scorers_that_run_no_model_need_none(mine: Path) -> None:
    random, tail = SCORERS.class_of("random"), SCORERS.class_of("tail")
    assert default_drafter(mine, [random]) == default_drafter(mine, []) == embedded("drafter")
    with pytest.raises(ConfigError, match=GET):
        default_drafter(mine, [random, tail])


def test_a_fetched_one_is_taken_and_told(
    mine: Path, fetched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sp.load(mine, device="cpu").drafter.path == fetched  # type: ignore[union-attr]
    text = tmp_path / "text.txt"
    text.write_text("The sky is blue. " * 60)
    asked = ["--prompt-file", text, "--question", "What is blue?", "--device", "cpu", "--out", tmp_path / "out"]
    more = ["--compress", "always", "--keep-ratio", "0.5", "--max-new-tokens", "2", "--no-full"]
    assert call(monkeypatch, "run", "--target", mine, *asked, *more, "--json") == 0
    said = capsys.readouterr()
    note = "smollm2-135m, the best drafter found locally, as none was specified"
    assert json.loads(said.out)["drafter"] == [note]
    assert f"sp: drafter: {note}" in said.err.splitlines()
    both = ["--target", "smollm2-135m", "--drafter", "smollm2-135m"]  # from one file
    assert call(monkeypatch, "run", *both, *asked, *more, "--json") == 0
    said = capsys.readouterr()
    assert (json.loads(said.out)["drafter"], "drafter:" in said.err) == ([], False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--prompt-file", "{text}", "--question", "Q?"),
        ("chat",),
        ("serve", "--port", "0"),
        ("serve", "--port", "0", "--scorer", "random"),  # requests may name another
        ("eval", "needle", "-p", "500", "-n", "1"),
        ("bench", "ttft", "-p", "500"),
        ("sweep", "{sweep}"),
    ],
    ids=lambda arguments: "_".join(arguments[:2]),
)
def test_commands_say_so_in_a_line(
    arguments: tuple[str, ...],
    mine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"text": tmp_path / "text.txt", "sweep": tmp_path / "sweep.yaml"}
    files["text"].write_text("The sky is blue.")
    files["sweep"].write_text(SWEEP.format(scorer="tail"))
    target = () if arguments[0] == "sweep" else ("--target", mine)
    assert call(monkeypatch, *(each.format(**files) for each in arguments), *target) == 2
    error = capsys.readouterr().err.splitlines()
    assert "fetch one with: sp get smollm2-135m" in error[-1]
    assert len(error) == 1


SWEEP = """
pairs: {{target: mine.gguf}}
tasks: {{task: needle, tokens: 500, examples: 1}}
cells: {{scorer: {scorer}, keep_ratio: 0.2}}
"""


def test_a_sweep_needs_none_where_no_cell_does(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(SWEEP.format(scorer="random"))
    assert load_sweep(tmp_path / "sweep.yaml").runs[0].pair.drafter == embedded("drafter")


def test_a_sweep_takes_names(mine: Path, fetched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(SWEEP.format(scorer="tail").replace("mine.gguf", "smollm2-135m"))
    pair = load_sweep(tmp_path / "sweep.yaml").runs[0].pair
    assert (pair.target, pair.drafter) == (Path("smollm2-135m"), Path("smollm2-135m"))
    fetched.unlink()
    with pytest.raises(ConfigError, match=r"line 2: smollm2-135m is not downloaded yet; fetch it with: sp get"):
        load_sweep(tmp_path / "sweep.yaml")


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect",),
        ("plan", "--gpu", "24g"),
        ("heads", "-t", "200", "-n", "1"),
        ("bench", "model", "-p", "8", "-n", "0", "-r", "1"),
    ],
    ids=lambda arguments: "_".join(arguments[:2]),
)
def test_file_arguments_take_names(
    arguments: tuple[str, ...], fetched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *arguments, "smollm2-135m", "--json") == 0
    assert json.loads(capsys.readouterr().out)
    fetched.unlink()
    assert call(monkeypatch, *arguments, "smollm2-135m", "--json") == 2
    assert "fetch it with: sp get smollm2-135m" in capsys.readouterr().err
