"""`sp get` against a package index in a folder: what comes, what stays, and what is said when it cannot."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from package_index import CONTENT, HALF, ONE, TWO, begin, index_environment, write_index, write_quick_pip, write_wheel

from sp import cli
from sp.errors import FetchError
from sp.hub import KNOWN, KnownModel, fetched
from sp.hub import fetch as download
from sp.hub.fetch import fetch, take_member
from sp.hub.known import WheelMember


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the wheels; pip, the cache and the table are set up for it."""
    write_index(tmp_path / "index")
    for name, value in index_environment(tmp_path / "index", tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    for model in (ONE, TWO):
        monkeypatch.setitem(KNOWN, model.name, model)  # type: ignore[arg-type]
    return tmp_path / "index"


@pytest.fixture
def quick(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same index, from which a stand-in of pip fetches; the folder that it lies in."""
    folder = write_quick_pip(tmp_path / "quick")
    monkeypatch.setattr(download, "pip_command", lambda: [sys.executable, str(folder / "pip" / "__main__.py")])
    return folder


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr("sys.argv", ["sp", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def left(tmp_path: Path) -> list[str]:
    """Names of all that lies below the folder of models."""
    folder = tmp_path / "cache" / "models"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("model", [ONE, TWO], ids=lambda model: model.name)
def test_a_model_comes_whole_and_alone_and_only_once(
    model: KnownModel,
    index: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if model is ONE:  # the other comes by pip itself
        request.getfixturevalue("quick")
    assert call(monkeypatch, "get", model.name, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    path = tmp_path / "cache" / "models" / f"{model.name}.gguf"
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == [path.name]
    assert not (tmp_path / "outside").exists()
    assert (facts["path"], facts["bytes"], facts["sha256"]) == (str(path), len(CONTENT), model.sha256)
    assert (facts["licence"], facts["fetched"]) == ("MIT", True)
    for wheel in index.iterdir():
        wheel.unlink()
    assert call(monkeypatch, "get", model.name) == 0  # from no index: it is here
    said = capsys.readouterr()
    assert (said.out.splitlines()[0], said.err) == (f"{model.name}: {path}", "")


def test_bytes_of_the_progress_add_up(quick: Path) -> None:
    steps: list[int] = []
    fetch(TWO, steps.append)
    assert sum(steps) == len(CONTENT)
    assert min(steps) > 0


def test_list_models_tells_which_are_here(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(ONE)
    assert call(monkeypatch, "list", "models", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert rows["one-part"]["path"] == str(fetched(ONE))
    assert rows["two-parts"]["path"] is None
    smollm2 = rows["smollm2-135m"]
    assert (smollm2["licence"], smollm2["bytes"], smollm2["path"]) == ("Apache-2.0", 98_362_432, None)
    assert call(monkeypatch, "list", "models", "smollm2-135m") == 0
    assert "not downloaded; sp get smollm2-135m" in " ".join(capsys.readouterr().out.split())


def test_an_unknown_name_is_answered_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "get", "smolm2-135m") == 2
    assert "unknown model 'smolm2-135m'; did you mean 'smollm2-135m'?" in capsys.readouterr().err


def damaged(wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    data[60:90] = bytes(30)
    wheel.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda index: write_wheel(index, "sp-test-model", {"inside/model.gguf": bytes(len(CONTENT))}), "sha256"),
        (lambda index: write_wheel(index, "sp-test-model", {"inside/model.gguf": CONTENT[:-1]}), "sha256"),
        (
            lambda index: write_wheel(index, "sp-test-model", {"inside/model.gguf": CONTENT + b"x"}),
            "is larger than",
        ),
        (lambda index: write_wheel(index, "sp-test-model", {"other": CONTENT}), "does not contain inside/model.gguf"),
        (lambda index: damaged(index / "sp_test_model-1.0-py3-none-any.whl"), "damaged"),
        (lambda index: os.truncate(index / "sp_test_model-1.0-py3-none-any.whl", 500), "damaged"),
    ],
    ids=["other bytes", "fewer bytes", "more bytes", "no member", "damaged", "truncated"],
)
def test_an_unknown_file_is_refused_in_one_line(
    spoil: Callable[[Path], object],
    message: str,
    index: Path,
    quick: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(index)
    assert call(monkeypatch, "get", "one-part") == 2
    told, *_, error = capsys.readouterr().err.splitlines()  # lines of progress between them, where it takes long
    assert told.startswith("sp: fetching one-part")
    assert error.startswith("sp: error: ")
    assert message in error
    assert len(error) < 320
    assert left(tmp_path) in ([], [".one-part.parts"])
    write_index(index)
    assert call(monkeypatch, "get", "one-part") == 0
    assert left(tmp_path) == ["one-part.gguf"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(lambda wheel: os.truncate(wheel, 500), "is invalid"), (Path.unlink, "No matching distribution found")],
    ids=["truncated", "absent"],
)
def test_an_error_of_pip_is_reported_in_its_words(spoil: Callable[[Path], None], message: str, index: Path) -> None:
    spoil(index / "sp_test_model-1.0-py3-none-any.whl")
    with pytest.raises(FetchError, match=f"^cannot download sp-test-model==1.0: pip says: .*{message}"):
        fetch(ONE)


def test_a_file_of_another_size_is_downloaded_again(quick: Path) -> None:
    path = fetch(ONE)
    path.write_bytes(b"cut short")
    assert fetched(ONE) is None
    assert fetch(ONE).read_bytes() == CONTENT


def test_no_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path))
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FetchError, match=r"^cannot download sp-test-model==1.0: the package index does not answer;"):
        fetch(ONE)


@pytest.mark.parametrize("cache", ["/dev/null/cache", "file"])
def test_a_cache_that_cannot_be_written_is_one_line(
    cache: str, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file, and no folder")
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / cache))
    with pytest.raises(FetchError, match=r"^cannot write to .*/models: .*; free some space there, or set SP_CACHE_DIR"):
        fetch(ONE)


def test_a_hash_that_is_known_is_checked_by_pip(index: Path, tmp_path: Path) -> None:
    wheel = index / "sp_test_model-1.0-py3-none-any.whl"
    digest, came = hashlib.sha256(wheel.read_bytes()).hexdigest(), list[int]()
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    found = download.download("sp-test-model==1.0", tmp_path / "right", came.append, sha256=digest)
    assert found.read_bytes() == wheel.read_bytes()
    with pytest.raises(FetchError, match=r"sp-test-model==1\.0: pip says: THESE PACKAGES DO NOT MATCH"):
        download.download("sp-test-model==1.0", tmp_path / "wrong", came.append, sha256="0" * 64)


def test_without_pip_uv_runs_one(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    skip = 'while [ "$1" != -m ]; do shift; done'
    uv.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n{skip}\nexec {sys.executable} "$@"\n')
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(download, "find_spec", lambda name: None)
    assert fetch(ONE).read_bytes() == CONTENT
    said = (tmp_path / "said").read_text()
    assert said.startswith(f"run --no-project --python {sys.executable} --with pip python -m pip download --no-deps ")


def test_without_pip_and_uv_the_error_names_a_command_that_helps(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(download, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match="no pip and there is no uv; run `python -m ensurepip`"):
        fetch(ONE)


@pytest.mark.parametrize("signal", ["kill", "terminate"])
def test_one_that_was_killed_leaves_nothing_in_the_way(signal: str, quick: Path, tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    process = begin({"PYTHONPATH": str(quick), "HANGS": str(mark)}, "get", "two-parts")
    try:
        until = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < until:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
    finally:
        getattr(process, signal)()
        process.communicate()
    assert not (tmp_path / "cache" / "models" / "two-parts.gguf").exists()
    assert any("download-" in name for name in left(tmp_path))
    assert fetch(TWO).read_bytes() == CONTENT
    assert left(tmp_path) == ["two-parts.gguf"]


def test_complete_parts_are_not_fetched_again(index: Path, quick: Path, tmp_path: Path) -> None:
    second = index / "sp_test_part1-1.0-py3-none-any.whl"
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(FetchError, match=r"sp-test-part1==1\.0"):
        fetch(TWO)
    assert len(left(tmp_path)) == 2  # the folder of the parts, and the first of them
    second.write_bytes(kept)
    (index / "sp_test_part0-1.0-py3-none-any.whl").unlink()
    assert fetch(TWO).read_bytes() == CONTENT


def test_two_at_once_both_have_it(quick: Path, tmp_path: Path) -> None:
    both = [begin({"PYTHONPATH": str(quick)}, "get", "two-parts") for _ in range(2)]
    ended = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    assert left(tmp_path) == ["two-parts.gguf"]
    assert (tmp_path / "cache" / "models" / "two-parts.gguf").read_bytes() == CONTENT


def test_a_member_larger_than_it_may_be_is_not_read_to_its_end(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "bomb", {"member": bytes(50_000_000)})
    with pytest.raises(FetchError, match="larger than the 10 bytes"):
        take_member(wheel, "member", tmp_path / "member", 10)
    assert (tmp_path / "member").stat().st_size == 0


def test_the_table_is_sound() -> None:
    for name, model in KNOWN.items():
        assert name == model.name == name.lower()
        assert len(bytes.fromhex(model.sha256)) == 32
        for part in model.parts:
            package, _, version = part.requirement.partition("==")
            assert package
            assert version
            assert part.member.startswith(f"{package.replace('-', '_')}/")
    assert isinstance(KNOWN["gemma-3-270m"].parts[3], WheelMember)
    assert len(CONTENT) == HALF * 2
