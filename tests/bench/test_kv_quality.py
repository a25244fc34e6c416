"""experiments/kv_quality.py refuses what would measure nothing, or something else, before a model is loaded."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "kv_quality.py"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--tokens", "-3"], "--every is 1; it must be from 1 to --tokens, -3"),
        (["--tokens", "64", "--every", "500"], "--every is 500; it must be from 1 to --tokens, 64"),
        (["--every", "0"], "--every is 0"),
        (["--kv", "q8_0", "nope"], "--kv is 'nope'"),
        (["--kv", "5bit", "--no-rotate"], "do not switch rotation off"),
    ],
)
def test_senseless_options_end_in_one_line(
    asked: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    with pytest.raises(SystemExit) as ended:
        main(["--model", "none.gguf", "--text", "none.txt", "--out", str(tmp_path / "results"), *asked])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())
