"""The method in one file: for the same prompt and options it keeps the same tokens and answers the same as `sp run`."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from command_line import invoke
from embedded_pair import known_task

import sp
from sp.session import decide, embedded
from sp.studies.sample import sample

FILE = Path(__file__).parents[1] / "examples" / "minimal.py"
DOCUMENT, EXAMPLE = sample()
OTHER = "Grüße aus Köln – 東京は雨です。 "


def imported() -> ModuleType:
    spec = spec_from_file_location("minimal", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MINIMAL = imported()


@pytest.fixture(scope="module")
def pipeline() -> sp.Pipeline:
    return sp.load(device="cpu")


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return MINIMAL.open_gguf(embedded("target")), MINIMAL.open_gguf(embedded("drafter"))


def part(characters: int) -> str:
    """So much of the embedded document, its answer inside."""
    at = DOCUMENT.index(EXAMPLE.needle)
    return DOCUMENT[max(0, at - characters // 2) : at + characters // 2]


def cut(characters: int, around: str = "") -> tuple[str, str]:
    return f"{around}{part(characters)}{around}", EXAMPLE.question


def task(tokens: int) -> tuple[str, str]:
    example = known_task().example(7, tokens, len)
    return example.document, example.question


@pytest.mark.parametrize(
    ("asked", "ratio", "active"),
    [
        (cut(3600), 0.05, True),
        (cut(2200), 0.1, True),
        (task(1500), 0.15, True),
        (cut(1600, OTHER * 10), 0.2, True),
        (cut(1200), 0.5, True),
        (cut(600, OTHER), 0.1, False),
        (cut(600), 1.0, False),
    ],
)
def test_same_tokens_and_same_answer(
    pipeline: sp.Pipeline, pair: tuple[Any, Any], asked: tuple[str, str], ratio: float, active: bool
) -> None:
    prompt = sp.Prompt.from_document(*asked, pipeline.target.template)
    run = pipeline.run(prompt, sp.RunOptions(keep_ratio=ratio, max_new_tokens=8))
    found = MINIMAL.speculative_prefill(*pair, *asked, ratio, 8)
    kept = np.ones(len(run.prompt), bool) if run.selection is None else run.selection.selected
    assert np.array_equal(found.prompt.ids, run.prompt.ids)
    assert np.array_equal(found.kept, kept)
    assert found.text == run.answer.text
    assert (found.scores is not None) == run.decision.activated == active
    if run.scores is not None:
        np.testing.assert_allclose(found.scores, run.scores, rtol=1e-4, atol=1e-7)


def test_where_it_begins_to_pay_is_where_run_begins(pipeline: sp.Pipeline, pair: tuple[Any, Any]) -> None:
    for ratio in (0.05, 0.3, 0.7):
        for size in (1000, 3000, 5000, 6000, 7000):
            prompt = sp.Prompt.from_document(part(size), EXAMPLE.question, pipeline.target.template)
            tokens = pipeline.tokenise(prompt)
            protected = int(tokens.mask("protected").sum())
            decided = decide(
                pipeline.target.model.config,
                pipeline.drafter.model.config,
                tokens=len(tokens),
                protected=protected,
                keep_ratio=ratio,
                compress="auto",
            )
            models = (one.model for one in pair)
            assert MINIMAL.pays(*models, len(tokens), protected, ratio) == decided.activated


def test_the_script_prints_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(part(2200), "utf-8")
    asked = ["--prompt-file", str(file), "--question", EXAMPLE.question, "--keep-ratio", "0.1", "--max-new-tokens", "8"]
    monkeypatch.setattr("sys.argv", [str(FILE), *asked])
    MINIMAL.main()
    told = capsys.readouterr().out.splitlines()
    report = json.loads(invoke("run", *asked, "--no-full", "--device", "cpu", "--out", tmp_path, "--json").stdout)
    assert f"Answer  {report['answer']}" in told
    assert f"Kept    {report['kept_tokens']:,} of {report['prompt_tokens']:,} tokens" in told


def test_it_is_short_and_calls_no_pipeline() -> None:
    text = FILE.read_text("utf-8")
    assert len(text.splitlines()) <= 400
    assert "Pipeline" not in text
    assert "sp.session" not in text
