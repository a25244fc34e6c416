"""Tables of every command: at 80 columns no head and no cell is cut, and --wide has all of it side by side."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import commands
from hypothesis import given, settings
from hypothesis import strategies as st

from sp import cli
from sp.commands import kernels, sweep, train
from sp.commands.bench import decode as bench_decode
from sp.commands.bench import model, ttft
from sp.commands.common import OutputOptions
from sp.commands.eval import natural, run, tasks, turns
from sp.commands.shell.terminal import INTERVAL, print_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "nvidia-h200"
CUT = "\N{HORIZONTAL ELLIPSIS}"
LONG = "lookahead attention=flashprefill alpha=0.12 queries=16 order=heads,queries,pool"
NAME = "Qwen3.6-27B-Instruct-UD-Q4_K_XL-00001-of-00002"
FIGURES = st.text("0123456789.%+-()", min_size=1, max_size=20)
WORDS = st.text("abcdefg[]=_ -", max_size=90)


def records(name: str, most: int = 60) -> list[dict[str, Any]]:
    with (RESULTS / f"{name}.jsonl").open() as file:
        return [json.loads(line) for line, _ in zip(file, range(most), strict=False)]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["sp", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_figure_stands_whole_and_every_text_in_full(data: st.DataObject) -> None:
    left = data.draw(st.integers(1, 4))
    heads = [f"t{i}" for i in range(left)] + data.draw(st.lists(st.one_of(FIGURES, st.just(INTERVAL)), max_size=9))
    lines = st.tuples(*[WORDS] * left, *[FIGURES] * (len(heads) - left))
    cells = data.draw(st.lists(lines, min_size=1, max_size=4))
    main = data.draw(st.lists(st.sampled_from(heads[left:]), unique=True)) if len(heads) > left else []
    shown = printed(lambda: print_table(heads, cells, "table", left, main=[*heads[:left], *main] if main else ()))
    table = "\n".join(line for line in shown.splitlines() if ": --wide)" not in line)
    assert max(map(len, table.splitlines())) <= 80
    assert CUT not in table
    wanted = [place for place in range(left, len(heads)) if not main or heads[place] in main]
    for line in cells:
        for place in wanted:
            if heads[place] != INTERVAL:
                assert line[place] in table.split()
    for line in cells:  # what is folded is there letter for letter
        for letter in "abcdefg[]=_":
            assert table.count(letter) >= max(text.count(letter) for text in line[:left])
    whole = printed(lambda: print_table(heads, cells, "table", left, wide=True))
    assert len(whole.splitlines()) == len(cells) + 1
    for line in cells:
        assert any(all(" ".join(cell.split()) in " ".join(row.split()) for cell in line) for row in whole.splitlines())


def printed(work: Callable[[], object]) -> str:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        work()
    return out.getvalue()


def of_answers(wide: bool) -> None:
    line = {"task": "needle_multivalue filler=sample", "tokens_asked": 131072, "scorer": LONG, "n": 1000, "not_run": 12,
            "selector": "sentence neighbours=by_length", "keep_ratio": 0.05, "realised_keep": 0.049, "accuracy": 0.987,
            "low": 0.95, "high": 1.0, "score": 0.98, "needle_rank": 1.0, "needle_margin": 2.0, "ttft_s": 123.456,
            "speedup": 11.2, "given_kept": 1.0, "accuracy_given_kept": 1.0, "perplexity": 1234.5, "nll": 12.345,
            "kl": 1.234, "agreement": 0.5}  # fmt: skip
    line |= {f"{name}{end}": -0.12 for name in ("against_full", "against_oracle", "nll_change")
             for end in ("", "_low", "_high")}  # fmt: skip
    whole = line | {"scorer": "full", "selector": "full", "keep_ratio": 1.0, "not_run": 0}
    for columns in (run.ANSWERS, run.ORACLE_ANSWERS, run.PERPLEXITY):
        run.show([whole, line], columns, SimpleNamespace(as_json=False, wide=wide), SimpleNamespace(drafter=None))  # type: ignore[arg-type]


def of_natural(wide: bool) -> None:
    from sp.evals.natural.rows import CELL, OVERLAPS, REASONS

    line = dict.fromkeys(CELL, 0) | {"scorer": LONG, "selector": "sentence", "keep_ratio": 0.125, "n": 1000}
    line |= {"whole": 0.5, "low": 0.4, "high": 0.6, "accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6}
    line |= {"misses": dict.fromkeys(REASONS, 1000), "score_s": 123.456}
    natural.show([line | {"overlap": name} for name in OVERLAPS], "", wide)


def of_turns(wide: bool) -> None:
    line = {"tokens_asked": 131072, "way": "conversation", "scorer": LONG, "selector": "sentence", "kind": "updates",
            "words_match": True, "n": 1000, "not_run": 10, "keep_ratio": 0.125, "accuracy": 0.5, "low": 0.4,
            "high": 0.6, "kept_tokens": 131072, "ttft_s": 123.45, "speedup": 123.4}  # fmt: skip
    turns.show([line, line | {"way": "full", "scorer": "full", "selector": "full"}], None, wide)


def of_verdicts(wide: bool) -> None:
    names = ("full", "oracle", "lexical", "bm25", "random")
    entry = SimpleNamespace(accuracy=1.0, low=0.96, high=1.0, n=100, not_run=0)
    found = [SimpleNamespace(task=LONG, tokens=1 << 17, keep=0.05, discriminating=False, fails=("full", "bm25"),
                             measured=True, entries=dict.fromkeys(names, entry),
                             crowded=True, forced=400)]  # fmt: skip
    tasks.show_verdicts(found, 100, 0.05)  # type: ignore[arg-type]


def of_model(wide: bool) -> None:
    row = {"model": NAME, "weights_gb": 17.6, "kv": "q4_0 rotated", "path": "portable", "math": "int8", "cards": 1,
           "test": "tg64 @ d131072", "tok_s": 12345.67, "sd": 123.45, "median": 12345.67, "peak_gb": 1.0}  # fmt: skip
    model.print_rows([row, row | {"test": "pp131072"}], OutputOptions(wide=wide))
    found = [SimpleNamespace(entry="attention_sm90_paged", variant=LONG, launches=12345, ms=1234.567)] * 2
    model.print_kernels("pp131072", found, OutputOptions(wide=wide))


def of_drafter(wide: bool) -> None:
    row = {"model": NAME, "path": "portable", "prompt_tokens": 131072, "attention": "alpha 0.1", "density": 0.5,
           "score_s": 12.345, "limit_s": 12.345, "peak_bytes": 12e9, "weight_bytes": 1e9,
           **{f"{stage}_ms": 1234.5 for stage in ("attention", "project", "feed_forward", "sum")}}  # fmt: skip
    model.print_drafter_rows([row, row], OutputOptions(wide=wide))


def of_llama_cpp(wide: bool) -> None:
    cells = [["llama.cpp", "b1234 (abcdef0)", "CUDA", "q8_0", "2048", "512", test, "1234.567", "12345.6", "5", "*"]
             for test in ("pp131072", "tg64")]  # fmt: skip
    heads = ["engine", "build", "backend", "kv", "batch", "ubatch", "test", "seconds", "tok/s", "runs", "best"]
    print_table(heads, cells, "table", 7, main=bench_decode.LLAMA_MAIN, wide=wide)


def of_needs(wide: bool) -> None:
    from sp.kernels.tools.resources import ARCHES

    need = SimpleNamespace(registers=255, spill=128, shared=101376)
    rows = {f"{name} sm_{arch}": need for arch in ARCHES for name in ("k A=1", f"gemm {LONG}")}
    kernels.print_resources(SimpleNamespace(rows=rows, dynamic=dict.fromkeys(rows, 1024)), wide)  # type: ignore[arg-type]


def of_times(wide: bool) -> None:
    config = {"path": "portable", "op": "attention", "shape": [8192, 5120], "mode": "queued", "type": "IQ4_XS"}
    times = {"ms": 123.4567, "ms_low": 123.4567, "ms_high": 123.4567, "gb_s": 4321.0, "tflops": 987.0}
    kernels.print_times([{"bench": "flashprefill_layer", "config": config, "metrics": times}] * 2, wide)


def of_training(wide: bool) -> None:
    row = {"task": "needle_multivalue filler=sample", "left_out": True, "tokens": 131072, "n": 1000, "auc": 0.987,
           "recall": 0.5, "beside_auc": None, "beside_recall": 0.5}  # fmt: skip
    train.show([row, row | {"task": "vt"}], "tail queries=24", wide)


def of_plan(wide: bool) -> None:
    from sp.studies.sweep.conduct import make_plan
    from sp.studies.sweep.sweep import load_sweep

    plan = make_plan(load_sweep(ROOT / "experiments" / "quickstart.yaml", ["device=cpu"]))
    with pytest.MonkeyPatch.context() as patch:
        estimate = SimpleNamespace(seconds=lambda work: 7300.0, source="a guess")
        patch.setattr("sp.studies.sweep.conduct.from_earlier", lambda plan: estimate)
        sweep.show_plan(plan, False, 1, wide)


CASES: dict[str, Callable[[bool], object]] = {
    "eval": of_answers,
    "eval natural": of_natural,
    "eval turns": of_turns,
    "bench model": of_model,
    "bench drafter": of_drafter,
    "bench decode": lambda wide: bench_decode.show(
        [*records("decode"), *records("verify")], [], OutputOptions(wide=wide)
    ),
    "bench ttft": lambda wide: ttft.show(records("ttft"), [], OutputOptions(wide=wide)),
    "bench turn": lambda wide: ttft.show_turns(records("turn"), OutputOptions(wide=wide)),
    "bench llama-cpp": of_llama_cpp,
    "kernels list": lambda wide: kernels.list_kernels(None, False, "sm_90a", wide, False),
    "kernels list --dispatch": lambda wide: kernels.list_kernels(None, True, "sm_90a", wide, False),
    "kernels check": of_needs,
    "kernels bench": of_times,
    "train scorer": of_training,
    "sweep": of_plan,
}
ALWAYS: dict[str, Callable[[bool], object]] = {"eval discriminates": of_verdicts}
"""Tables that are never wider."""


@pytest.mark.parametrize("name", [*CASES, *ALWAYS])
def test_no_head_and_no_cell_is_cut_at_80_columns(name: str) -> None:
    shown = printed(lambda: {**CASES, **ALWAYS}[name](False))
    assert shown.strip()
    assert CUT not in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    if name in CASES:
        whole = printed(lambda: CASES[name](True))
        assert CUT not in whole
        assert ": --wide)" not in whole
        assert len(whole.splitlines()) <= len(shown.splitlines())


def test_every_command_with_tables_has_a_case() -> None:
    wide = {" ".join(words) for words, one in commands().items() if any(each.name == "wide" for each in one.options)}
    shared = {path for path in wide if path.startswith("eval ") and path not in CASES}
    assert {*CASES} - {"eval", "kernels list --dispatch"} == wide - shared
    assert shared == {f"eval {name}" for name in ("needle", "ruler", "ppl", "tasks", "file")}


def test_no_other_command_makes_a_table() -> None:
    """Tables are printed by `print_table`; those that are not are of known widths, and tested by name."""
    made = set()
    for path in (ROOT / "sp" / "commands").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Table":
                made.add(path.stem)
    assert made == {"tasks"}


@pytest.mark.parametrize("shape", ["tiny-qwen35"])
def test_what_a_file_holds_fits_80_columns(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tiny.gguf"
    printed(lambda: call(monkeypatch, "synth", "--shape", shape, "-o", file))
    shown = printed(lambda: call(monkeypatch, "inspect", file))
    assert CUT not in shown
    table = shown[: shown.rindex("\nsp run")] if "\nsp run" in shown else shown
    assert max(map(len, table.splitlines())) <= 80


def test_help_fits_80_columns_and_is_in_groups() -> None:
    for words, command in commands().items():
        shown = printed(lambda command=command: print(command.help))  # type: ignore[misc]
        lines = [line for line in shown.splitlines() if not line.strip().startswith(("sp ", "git ", "--"))]
        assert max(map(len, lines)) <= 80, words
        assert "--plugin" in shown, words
        if len(command.options) > 20:
            assert len({one.group for one in command.options}) >= 2, words
