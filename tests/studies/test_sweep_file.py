"""Sweep files: combinators against itertools, overrides, hashes, and a line number for whatever is wrong."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.errors import ConfigError
from sp.studies.sweep.config_values import expand, override, parse_yaml
from sp.studies.sweep.sweep import config_hash, load_sweep

GOOD = """\
name: small
tasks:
  grid: {task: [niah_single_1, niah_multikey_2], tokens: [512, 1024]}
  examples: 25
  per_run: 10
cells:
  - grid:
      scorer: [tail, {name: tail, queries: 16}]
      keep_ratio: [0.05, 0.1]
      selector.neighbours: [0, 1]
  - list:
      - {scorer: random}
      - {scorer: oracle}
"""


def load(tmp_path: Path, text: str, *overrides: str):
    path = tmp_path / "small.yaml"
    path.write_text(text)
    return load_sweep(path, overrides)


def plain(section: str, keys: list[str]) -> list[dict[str, object]]:
    return [{k: v.plain() for k, v in each.items()} for each in expand(parse_yaml(section, "x"), keys, "cell")]


@settings(max_examples=40, deadline=None)
@given(
    grid=st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=3),
    zipped=st.integers(0, 3),
    listed=st.integers(0, 3),
    fixed=st.booleans(),
)
def test_combinators_multiply(grid: dict[str, list[int]], zipped: int, listed: int, fixed: bool) -> None:
    section: dict[str, object] = {"f": 0} if fixed else {}
    if grid:
        section["grid"] = grid
    if zipped:
        section["zip"] = {"x": list(range(zipped)), "y": list(range(10, 10 + zipped))}
    if listed:
        section["list"] = [{"z": i} for i in range(listed)]
    if not section:
        return
    grids = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    zips = [{"x": i, "y": 10 + i} for i in range(zipped)] or [{}]
    lists = [{"z": i} for i in range(listed)] or [{}]
    wanted = [{**({"f": 0} if fixed else {}), **g, **z, **item} for g, z, item in product(grids, zips, lists)]
    assert plain(str(section), list("abcfxyz")) == wanted


def test_a_sweep_expands_to_blocks_of_examples_times_unique_cells(tmp_path: Path) -> None:
    sweep = load(tmp_path, GOOD)
    assert [run.label for run in sweep.runs[:4]] == [
        "niah_single_1/512/0", "niah_single_1/512/10", "niah_single_1/512/20", "niah_single_1/1024/0",
    ]  # fmt: skip
    assert [run.count for run in sweep.runs] == [10, 10, 5] * 4
    cells = sweep.runs[0].cells
    assert len(cells) == 2 * 2 * 2 + 2
    assert [cell.config["scorer"]["queries"] for cell in cells[:5:4]] == [8, 16]
    assert [cell.config["selector"]["neighbours"] for cell in cells[:2]] == [0, 1]
    assert cells[4].options.scorer.queries == 16  # type: ignore[attr-defined]
    assert all(cell.options.compress == "always" for cell in cells)
    assert sweep.out == Path("sp-sweep/small")


def test_hashes_depend_on_what_decides_the_result_and_on_nothing_else(tmp_path: Path) -> None:
    models = {"target": "aa", "drafter": "bb"}

    def hashes(text: str, *overrides: str, models: dict[str, str] = models) -> list[str]:
        return [config_hash(run.config(models)) for run in load(tmp_path, text, *overrides).runs]

    base = hashes(GOOD)
    assert len(set(base)) == len(base)
    assert hashes(GOOD.replace("small", "other"), "device=cpu", "report=true") == base
    assert hashes(GOOD.replace("scorer: [tail,", "scorer: [{name: tail, queries: 8},")) == base  # the default, spelt
    assert set(hashes(GOOD, "cells.seed=1")).isdisjoint(base)
    assert set(hashes(GOOD, models={"target": "ab", "drafter": "bb"})).isdisjoint(base)
    longer = hashes(GOOD, "tasks.examples=30")
    assert len(set(base) & set(longer)) == 8  # full blocks stay as they are
    assert len(longer) == 12


def test_thinking_is_an_option_of_tasks(tmp_path: Path) -> None:
    plain = load(tmp_path, GOOD)
    off = load(tmp_path, GOOD.replace("examples: 25", "examples: 25\n  thinking: off"))
    assert [run.config({}) for run in off.runs] == [run.config({}) for run in plain.runs], "old hashes stand"
    text = GOOD.replace("tokens: [512, 1024]}", "tokens: [512], thinking: [on, off, auto]}\n  reasoning_effort: low")
    runs = load(tmp_path, text).runs[::3]
    asked = [(run.spec.thinking.mode, run.spec.thinking.effort) for run in runs]
    assert asked == [("on", "low"), ("off", "low"), ("auto", "low")] * 2
    assert runs[0].label == "niah_single_1 thinking=on reasoning_effort=low/512/0"
    assert runs[1].spec.name == "niah_single_1 reasoning_effort=low"
    assert len({config_hash(run.config({})) for run in runs}) == 6


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("cells.keep_ratio=[0.2]", {"keep_ratio": {0.2}, "cells": 4 + 2}),
        ("cells.keep_ratio=0.2", {"keep_ratio": {0.2}, "cells": 4 + 2}),
        ("cells.scorer=random", {"scorer": {"random"}, "cells": 4}),
        ("cells.scorer.queries=4", {"error": "queries"}),
        ("full=false", {"full": False}),
        ("tasks.tokens=[256]", {"tokens": {256}}),
    ],
)
def test_overrides(tmp_path: Path, setting: str, expected: dict[str, object]) -> None:
    if "error" in expected:
        with pytest.raises(ConfigError, match=str(expected["error"])):
            load(tmp_path, GOOD, setting)
        return
    sweep = load(tmp_path, GOOD, setting)
    cells = sweep.runs[0].cells
    if "keep_ratio" in expected:
        assert {cell.options.keep_ratio for cell in cells} == expected["keep_ratio"]
    if "scorer" in expected:
        assert {cell.config["scorer"]["name"] for cell in cells} == expected["scorer"]
    if "cells" in expected:
        assert len(cells) == expected["cells"]
    if "full" in expected:
        assert not sweep.runs[0].full
    if "tokens" in expected:
        assert {run.tokens for run in sweep.runs} == expected["tokens"]


def test_override_of_zip_and_list() -> None:
    root = parse_yaml("cells: {zip: {a: [1, 2], b: [3, 4]}, list: [{c: 5}, {c: 6}]}", "x")
    assert override(root, "cells.a=7", ["cells"]).plain()["cells"] == {
        "zip": {"b": [3, 4]}, "list": [{"c": 5}, {"c": 6}], "a": 7,
    }  # fmt: skip
    assert "list" not in override(root, "cells.c=[8]", ["cells"]).plain()["cells"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: small", "nmae: small", r"line 1: unknown key of a sweep 'nmae'; did you mean 'name'"),
        ("name: small", "name: 3", r"line 1: name must be str, not 3"),
        ("keep_ratio", "keep_ration", r"line 9: unknown key of a cell 'keep_ration'; did you mean 'keep_ratio'"),
        ("scorer: random", "scorer: randon", r"line 12: unknown scorer 'randon'; did you mean 'random'"),
        ("queries: 16", "querys: 16", r"line 8: unknown option of scorer tail 'querys'; did you mean 'queries'"),
        ("queries: 16", "queries: 0", r"line 8: queries must be at least 1"),
        ("selector.neighbours", "selector.neighbors", r"line 10: unknown option .* 'neighbors'; did you mean"),
        ("[0.05, 0.1]", "[]", r"line 9: this list is empty"),
        ("[0.05, 0.1]", "[0.05, 1.5]", r"line 9: keep_ratio must be above 0 and at most 1, not 1.5"),
        ("[0.05, 0.1]", "[0.05, '0.1']", r"line 9: options: keep_ratio must be float, not '0.1'"),
        ("niah_multikey_2", "niah_multikey2", r"line 3: unknown task 'niah_multikey2'; did you mean"),
        ("examples: 25", "examples: 25\n  thinking: maybe", r"line 5: thinking: mode is 'maybe'"),
        ("examples: 25", "examples: 25\n  thinking: [on]", r"line 5: thinking: mode is"),
        ("examples: 25", "examples: 25\n  reasoning_effort: a b", r"line 5: a reasoning effort is one word"),
        ("examples: 25", "examples: 0", r"line 4: examples must be at least 1, not 0"),
        ("examples: 25", "example: 25", r"line 4: unknown key of a task 'example'; did you mean 'examples'"),
        (
            "  per_run: 10\n",
            "  per_run: 10\n  examples: 3\n",
            r"line 6: the key 'examples' is here a second time",
        ),
        ("tokens: [512, 1024]", "tokenz: [1]", r"line 3: unknown key of a task 'tokenz'; did you mean 'tokens'"),
        ("cells:", "pairs: {target: none.gguf}\ncells:", r"line 6: target none.gguf is not a file"),
        ("cells:", "pairs: {drafter_rope: yarn}\ncells:", r"line 6: drafter_rope takes none, linear:FACTOR or yarn"),
        ("cells:", "pairs: {precision: int4}\ncells:", r"line 6: precision is 'int4'; did you mean 'int8'"),
        (
            "cells:",
            "pairs: {drafter_precision: 8}\ncells:",
            r"line 6: drafter_precision is 8; did you mean 'fp8'\? Known: auto, bf16, fp8, int8",
        ),
        ("cells:", "pairs: {target_rope: 4}\ncells:", r"line 6: target_rope must be str, not 4"),
        ("cells:", "cells: [", r"line \d+: not YAML"),
        ("  - list:\n", "  - {}\n  - list:\n", r"line 11: no cell is set here"),
    ],
)
def test_whatever_is_wrong_is_one_line_with_its_line_number(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cells", "--set takes KEY=VALUE"),
        ("cels.keep_ratio=1", "unknown section 'cels'; did you mean 'cells'"),
        ("cells=1", "cells is a section; set one of its keys"),
        ("cells.keep_ratio=[", "--set cells.keep_ratio: not YAML"),
        ("cells.keep_ratio=[]", "--set cells.keep_ratio: this list is empty"),
        ("cells.keep=1", "--set cells.keep: unknown key of a cell 'keep'; did you mean 'keep_ratio'"),
    ],
)
def test_bad_overrides_name_themselves(tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, GOOD, setting)


def test_missing_sections_and_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the section cells is missing"):
        load(tmp_path, "tasks: {task: niah_single_1, tokens: 512, examples: 1}")
    with pytest.raises(ConfigError, match=r"cannot read .*none.yaml: No such file"):
        load_sweep(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"small.yaml is empty"):
        load(tmp_path, "# nothing\n")


def test_parts_are_sweeps_of_their_own_in_one(tmp_path: Path) -> None:
    parts = (
        "parts:\n"
        "  - name: first\n"
        "    tasks: {task: needle, tokens: 512, examples: 2}\n"
        "    cells: {grid: {scorer: [tail, random]}}\n"
        "  - tasks: {task: fwe, tokens: 512, examples: 1}\n"
        "    cells: {scorer: oracle}\n"
    )
    sweep = load(tmp_path, parts, "cells.keep_ratio=0.5", "full=false")
    assert [(run.spec.name, len(run.cells), run.full) for run in sweep.runs] == [
        ("needle", 2, False),
        ("fwe", 1, False),
    ]
    assert {cell.options.keep_ratio for run in sweep.runs for cell in run.cells} == {0.5}
    with pytest.raises(ConfigError, match=r"line 5: unknown key of a part 'task'; did you mean 'tasks'"):
        load(tmp_path, parts.replace("- tasks: {task: fwe", "- task: {task: fwe"))
    with pytest.raises(ConfigError, match="the section cells is missing"):
        load(tmp_path, parts.replace("    cells: {scorer: oracle}\n", ""))
    with pytest.raises(ConfigError, match="unknown section 'sells'"):
        load(tmp_path, parts, "sells.keep_ratio=1")


def test_numbers_of_tokens_and_the_folder_are_as_on_the_command_line(tmp_path: Path) -> None:
    text = GOOD.replace("[512, 1024]", "[512, 1k, 128k]").replace(
        "cells:\n  - grid:", "cells:\n  - threshold: 2k\n    grid:"
    )
    sweep = load(tmp_path, text, "tasks.examples=1")
    assert [run.tokens for run in sweep.runs] == [512, 1024, 131072] * 2
    assert sweep.runs[0].cells[0].options.threshold == 2048
    assert [run.tokens for run in load(tmp_path, text, "tasks.tokens=[2k]").runs[:1]] == [2048]
    with pytest.raises(ConfigError, match=r"line 3: tokens is a number of tokens such as 512, 8k or 1m, not '1kb'"):
        load(tmp_path, GOOD.replace("[512, 1024]", "[1kb]"))
    with pytest.raises(ConfigError, match="examples must be int, not '1k'"):
        load(tmp_path, GOOD.replace("examples: 25", "examples: 1k"))
    path = tmp_path / "small.yaml"
    path.write_text(GOOD + "out: somewhere\n")
    assert [load_sweep(path, [], out).out for out in (None, tmp_path)] == [Path("somewhere"), tmp_path]
