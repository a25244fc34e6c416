"""`sp eval` refuses a length that the target has no room for before any model reads, at whichever place it stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sp import cli
from sp.commands.eval.run import EvalOptions
from sp.session import Pipeline, request

WINDOW = 1500


@pytest.mark.parametrize(
    "command",
    [
        ["needle", "-p", "600,2500"],
        ["ruler", "-t", "niah_single_1", "-p", "600,2500"],
        ["turns", "-t", "1200,9000", "--layout", "plain"],
        ["ppl", "-p", "400,2500"],
        ["needle", "-p", "600,9000000"],  # of which not one is made first
        ["ppl", "-p", "400,9000000"],
    ],
    ids=" ".join,
)
def test_what_cannot_fit_is_refused_unread(
    retriever_target: Path,
    retriever_drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    def unread(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model was to read")

    def narrow(self: EvalOptions, cells: Any) -> Pipeline:
        pair = Pipeline.open(self.models.target, self.models.drafter, device="cpu")
        pair.target.model.config = replace(pair.target.model.config, context=WINDOW)
        return pair

    for name in ("score_tokens", "finish"):
        monkeypatch.setattr(request, name, unread)
    monkeypatch.setattr("sp.evals.ppl.log_probabilities", unread)
    monkeypatch.setattr(EvalOptions, "open", narrow)
    models = ["--target", retriever_target, "--drafter", retriever_drafter, "--device", "cpu", "-n", 1]
    arguments = ["sp", "eval", *command, *models, "--out", tmp_path / "rows.jsonl"]
    monkeypatch.setattr("sys.argv", list(map(str, arguments)))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    error = capsys.readouterr().err
    assert stop.value.code == 2, error
    assert f"has a context of {WINDOW}" in error
    assert error.startswith("sp: error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "rows.jsonl").exists()
