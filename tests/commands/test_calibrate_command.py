"""`sp calibrate`: what it prints, what it keeps, and where."""

from __future__ import annotations

import json

import pytest
from command_line import invoke

from sp.errors import ConfigError
from sp.scoring.calibration import measure, record
from sp.scoring.calibration.record import Calibration, find_calibration, shipped
from sp.session.loaded import embedded


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    record._sha256.cache_clear()


@pytest.fixture
def unread(monkeypatch):
    """Calibrating takes no time: it is what ships."""
    made = next(one for one in shipped().values() if one.file == "drafter.gguf")
    monkeypatch.setattr(measure, "measured", lambda *_: made)
    return made


def run(*args: str) -> str:
    done = invoke(["calibrate", *args, "--device", "cpu"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_it_measures_and_keeps_what_the_scorer_finds() -> None:
    told = json.loads(run("-n", "1", "--seed", "3", "--json"))
    own = record.folder() / f"{told['sha256']}.json"
    assert told["kept"] == str(own)
    assert find_calibration(embedded("drafter")) == Calibration.load(own)
    assert (told["n"], told["made"]["seed"]) == (32, 3)


def test_it_says_which_layers_and_how_well(unread) -> None:
    lines = run().splitlines()
    assert lines[0] == "drafter.gguf: layers 3, 4, without rotary embedding; 5 of 5 layers run"
    assert f"{unread.n} questions: {100 * unread.top_5_percent:.0f} % of needles" in lines[2]


def test_a_file_is_written_where_it_is_asked_for(unread, tmp_path) -> None:
    run("-o", str(tmp_path / "mine.json"))
    assert Calibration.load(tmp_path / "mine.json") == unread
    assert not record.folder().exists()


def test_what_cannot_be_written_is_said_before_anything_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(measure, "measured", lambda *_: pytest.fail("it was measured"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write below"):
        run("-o", str(tmp_path / "file" / "mine.json"))
    with pytest.raises(ConfigError, match="is a folder"):
        run("-o", str(tmp_path))
