"""Former names of options go on working, everywhere options are taken, and say in a line what they are called now."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import sp
from sp.cli import COMMANDS, command_of
from sp.errors import ConfigError, SpWarning
from sp.keywords import RENAMED, present_names
from sp.session import embedded
from sp.session.options import ModelOptions, PlaceOptions
from sp.studies.sweep.sweep import config_hash, load_sweep

VALUES = {"precision": "int8", "drafter_precision": "int8", "speculator_type": "q8_0", "gpu": "24g"}
SWEEP = "pairs: {PAIRS}\ntasks: {task: needle, tokens: 512, examples: 1}\ncells: {keep_ratio: 0.5}\n"


def test_a_former_keyword_is_the_present_one() -> None:
    with pytest.warns(SpWarning, match=r"^math is now precision; the old name still works$"):
        assert ModelOptions(math="int8") == ModelOptions(precision="int8")  # type: ignore[call-arg]


def test_both_names_of_one_option_are_refused() -> None:
    with pytest.raises(ConfigError, match="names of the same option"), pytest.warns(SpWarning):
        ModelOptions(math="int8", precision="bf16")  # type: ignore[call-arg]


def test_unknown_keywords_are_told_the_present_names() -> None:
    with pytest.raises(ConfigError, match="did you mean 'precision'"):
        ModelOptions(precison="int8")  # type: ignore[call-arg]


@pytest.mark.parametrize("words", list(COMMANDS))
def test_a_former_flag_says_what_the_present_one_says(words: str) -> None:
    command = command_of(words)
    names = {one.name: one for one in command.options if not one.field.option.argument}
    for former, now in RENAMED.items():
        if now not in names or former in names:
            continue
        value = VALUES.get(now, "2")
        flag, present = (f"--{name.replace('_', '-')}" for name in (former, now))
        rest = ["x"] if any(one.field.option.argument for one in command.options) else []
        needed = required(command)
        want = command.parse([*rest, *needed, present, value])
        for form in ([flag, value], [f"{flag}={value}"]):
            with pytest.warns(SpWarning, match=rf"^{flag} is now {present}; the old name still works$"):
                assert command.parse([*rest, *needed, *form]) == want
        assert flag not in command.help.replace("\n", " ").split()


def required(command) -> list[str]:
    """Flags that a command cannot do without, with a value each."""
    flags: list[str] = []
    for one in command.options:
        if one.field.value is ... and not one.field.option.argument:
            flags += [one.flags[-1], "1"]
    return flags


def test_old_sweep_files_ask_for_the_runs_they_asked_for(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(SWEEP.replace("PAIRS", "grid: {math: [bf16, int8]}"))
    new.write_text(SWEEP.replace("PAIRS", "grid: {precision: [bf16, int8]}"))
    with pytest.warns(SpWarning, match="math is now precision"):
        ours = load_sweep(old)
    theirs = load_sweep(new)
    assert [config_hash(run.config({})) for run in ours.runs] == [config_hash(run.config({})) for run in theirs.runs]
    assert [run.pair for run in ours.runs] == [run.pair for run in theirs.runs]
    with pytest.warns(SpWarning, match=r"pairs\.math is now pairs\.precision"):
        changed = load_sweep(new, ["pairs.math=fp8"])
    assert {run.pair.precision for run in changed.runs} == {"fp8"}


def test_present_names_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert present_names({"precision": 1, "math": 2}, ["math", "precision"]) == {"precision": 1, "math": 2}
        ModelOptions(precision="int8"), PlaceOptions(device="cpu")


def test_loading_takes_former_names() -> None:
    with pytest.warns(SpWarning, match="math is now precision"):
        assert str(sp.load(device="cpu", math="int8").target.model.arithmetic.precision) == "int8"  # type: ignore[call-arg]


def test_a_pipeline_takes_a_speculator_by_both_names() -> None:
    pair = sp.load(device="cpu")
    with pytest.warns(SpWarning, match=r"^with_draft is now with_speculator; the old name still works$"):
        former = pair.with_draft(embedded("draft"))
    assert former.speculator is not None
    assert former.speculator.path == pair.with_speculator(embedded("draft")).speculator.path  # type: ignore[union-attr]
