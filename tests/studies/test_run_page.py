"""`report.html` of a run says what the run found, in text of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from markup_read import HOSTILE, Read

import sp
from sp.session import embedded
from sp.studies.figures import importance_figure
from sp.studies.pages import run_report

TEXT = f"The sky is blue. {HOSTILE} The grass is green. " * 6
NEEDLE = f"{HOSTILE} The grass is green."
OPTIONS: dict[str, Any] = {"keep_ratio": 0.5, "scorer": "lexical", "max_new_tokens": 2}


@pytest.fixture(scope="module")
def pair() -> sp.Pipeline:
    """The embedded drafter in both roles: what it answers is not looked at, and it reads four times faster."""
    return sp.Pipeline.open(embedded("drafter"), embedded("drafter"), device="cpu")


def written(pair: sp.Pipeline, folder: Path, compress: Any, full: bool = True) -> str:
    options = sp.RunOptions(compress=compress, **OPTIONS)
    prompt = sp.Prompt.from_document(TEXT, f"What is green? {HOSTILE}", pair.target.template, needle=NEEDLE)
    result = pair.run(prompt, options, full=full)
    facts = {"sp": "0", "question": f"What is green? {HOSTILE}", "answer": HOSTILE}
    files = run_report.write_files(result, pair, options, folder, facts, ["green"])
    assert all(path.parent == folder and path.is_file() for path in files.values())
    assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == sorted(
        path.name for path in files.values()
    )
    return files["report"].read_text()


def test_question_answers_times_tokens_and_settings_are_there(pair: sp.Pipeline, tmp_path: Path) -> None:
    page = written(pair, tmp_path / "out", "always")
    seen = Read(page)
    for said in ("What is green?", "Compressed", "Full prefill", "as fast to the first token", "target prefill",
                 "Compression was active", "Needle kept", "keep_ratio", "LexicalScorer", "needle 1"):  # fmt: skip
        assert said in seen.text, said
    ids = {str(attributes["id"]) for _, attributes in seen.tags if "id" in attributes}
    links = {str(attributes["href"]) for name, attributes in seen.tags if name == "a"}
    assert links == {"#needle-1", "#question-1"}
    assert {link[1:] for link in links} <= ids
    assert TEXT.strip() in seen.text
    whole = written(pair, tmp_path / "out", "off")
    assert "Compression was not active" in whole
    assert not (tmp_path / "out" / "importance.png").exists()


def test_nothing_that_others_wrote_is_markup_and_nothing_is_fetched(pair: sp.Pipeline, tmp_path: Path) -> None:
    seen = Read(written(pair, tmp_path / "out", "always", full=False))
    assert not {name for name, _ in seen.tags} & {"img", "iframe", "link", "object"}
    assert [name for name, _ in seen.tags].count("script") == 1
    for _, attributes in seen.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")


RULES = [("blocks:1", " % of the causal blocks read"), ("skip:0.2", " % of the causal blocks read"), ("off", "dense")]


@pytest.mark.parametrize(("rule", "told"), RULES)
def test_how_sparsely_the_drafter_read_is_there(pair: sp.Pipeline, tmp_path: Path, rule: str, told: str) -> None:
    options = sp.RunOptions(compress="always", **{**OPTIONS, "scorer": f"tail[sparse={rule}]"})
    prompt = sp.Prompt.from_document("The sky is blue. " * 400, "What is blue?", pair.target.template)
    result = pair.run(prompt, options, full=False)
    page = Read(run_report.write_files(result, pair, options, tmp_path / "out", {"sp": "0"})["report"].read_text()).text
    said = page.partition("Attention of the drafter")[2].partition("Attention of the target")[0]
    assert told in said
    assert f"sparse='{rule}'" in page


@pytest.mark.parametrize(("scorer", "reader"), [("tail", "drafter"), ("target_attention", "target")])
def test_the_picture_names_its_rows(pair: sp.Pipeline, scorer: str, reader: str) -> None:
    """Found by a newcomer: rows 0, 1, ... of the map were taken for layers, or for heads."""
    options = sp.RunOptions(compress="always", **{**OPTIONS, "scorer": scorer})
    result = pair.run(sp.Prompt.from_document(TEXT, "What is green?", pair.target.template), options)
    rows = importance_figure(result).axes[2]
    assert rows.get_ylabel() == f"a row for each\nattention layer\nof the {reader}\nthat scores,\nfirst on top"
    assert [label.get_text() for label in rows.get_yticklabels()] == []
    assert rows.get_xlabel() == f"chunk of 32 {reader} tokens"
