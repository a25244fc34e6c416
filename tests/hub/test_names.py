"""Names of known models where a path of a GGUF file goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sp.errors import GGUFError
from sp.gguf import GGUFFile
from sp.hub import KNOWN, model_path
from sp.session import embedded


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an empty folder to be in."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(cache: Path, name: str) -> Path:
    """A file of the right size where the model lies once it is fetched; sparse, so that it costs no disk."""
    path = cache / "models" / f"{name}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(KNOWN[name].nbytes)
    return path


def test_a_name_is_the_fetched_file(cache: Path) -> None:
    path = put(cache, "smollm2-135m")
    assert model_path("smollm2-135m") == model_path(Path("smollm2-135m")) == path


def test_a_file_of_that_name_goes_first(cache: Path) -> None:
    put(cache, "smollm2-135m")
    Path("smollm2-135m").write_bytes(embedded("drafter").read_bytes())
    with GGUFFile.open("smollm2-135m") as file:
        assert file.path == Path("smollm2-135m")


def test_a_folder_of_that_name_does_not(cache: Path) -> None:
    path = put(cache, "smollm2-135m")
    Path("smollm2-135m").mkdir()
    assert model_path("smollm2-135m") == path


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("smollm2-135m", r"^smollm2-135m is not downloaded yet; fetch it with: sp get smollm2-135m$"),
        (
            "SmolLM2-135m",
            r"^SmolLM2-135m: no such file and no known model; did you mean 'smollm2-135m'\?",
        ),
        ("qwen", r"^qwen: no such file and no known model\. Known: gemma-3-270m, smollm2-135m$"),
        ("qwen.gguf", r"^qwen.gguf: no such file; check the path$"),
        ("folder/smollm2-135m", r"^folder/smollm2-135m: no such file; check the path$"),
        ("", r"is a directory"),
        ("a\0b", r"^a.b: no such file and no known model"),
        ("x" * 5000, r"^x{60,}…: no such file and no known model"),
    ],
)
def test_a_missing_file_is_reported_in_one_line(named: str, message: str, cache: Path) -> None:
    with pytest.raises(GGUFError, match=message) as found:
        GGUFFile.open(named)
    assert len(str(found.value)) < 300


def test_a_file_cut_short_is_not_here(cache: Path) -> None:
    put(cache, "smollm2-135m").write_bytes(b"half")
    with pytest.raises(GGUFError, match="sp get smollm2-135m"):
        model_path("smollm2-135m")
