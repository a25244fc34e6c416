"""Every figure docs/results/study.md tells is what the study's rows say."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from sp.evals.summary import paired_difference, wilson
from sp.studies.sweep.sweep import load_sweep

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results" / "study.md").read_text()
STUDY = " ".join(PAGE.split())
LENGTHS = [2048 << i for i in range(7)]
NEEDLE = "needle no_shared_ngrams=3"
SEVERAL = [f"needle_{kind} no_shared_ngrams=3" for kind in ("multikey", "multiquery", "multivalue")]
RULER = "RULER at 8K over the keep ratio"
SINGLE = [
    "niah_single_1", "niah_single_2-synth", "niah_single_3-synth",
    "niah_multikey_1-synth", "niah_multikey_2", "niah_multikey_3",
]  # fmt: skip
Row = dict[str, Any]
Find = Callable[..., list[Row]]


@pytest.fixture(scope="module")
def find() -> Find:
    """Rows that were run, by part and by whatever else is asked of them; an empty answer is an error."""
    parts: dict[str, str] = {}
    rows: list[Row] = []
    with gzip.open(ROOT / "results" / "nvidia-h200" / "study" / "study.jsonl.gz", "rt") as file:
        for line in map(json.loads, file):
            if line["kind"] == "run":
                parts[line["run"]] = line["part"]
            elif line["kind"] == "row" and line["status"] == "ok":
                rows.append(line)
    assert f"{len(rows):,} answers" in STUDY
    asked = len(load_sweep(ROOT / "experiments" / "study.yaml").runs)
    assert f"({asked - len(parts)} of the {asked} runs are missing)" in STUDY
    scorers: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["task"], row["tokens_asked"], row["example"])):
        row["part"] = parts[row["run"]]
        scorers.setdefault(row["scorer"], []).append(row)

    def found(scorer: str, **asked: object) -> list[Row]:
        mine = [row for row in scorers[scorer] if all(row[key] == value for key, value in asked.items())]
        assert mine, asked
        return mine

    return found


def right(rows: Iterable[Row]) -> int:
    return sum(row["correct"] for row in rows)


def interval(rows: list[Row]) -> str:
    low, high = wilson(right(rows), len(rows))
    return f"{100 * low:.1f} to {100 * high:.1f}"


def difference(rows: list[Row], base: list[Row], measure: str = "correct") -> str:
    key = [(row["task"], row["tokens_asked"], row["example"]) for row in rows]
    assert key == [(row["task"], row["tokens_asked"], row["example"]) for row in base]
    found = paired_difference([row[measure] for row in rows], [row[measure] for row in base])
    mean, low, high = (f"{100 * value:+.1f}" for value in found)
    return f"{mean} ({low} to {high})"


@pytest.mark.parametrize(
    "scorer", ["full", "tail queries=question", "tail queries=24", "lexical", "random", "head_tail", "oracle"]
)
def test_table(find: Find, scorer: str) -> None:
    one = [find(task=NEEDLE, tokens_asked=n, part="One needle at every length", scorer=scorer) for n in LENGTHS]
    assert {len(rows) for rows in one} == {100}
    several = [find(task=task, scorer=scorer) for task in SEVERAL]
    assert {len(rows) for rows in several} == {572}
    keeps = {row["keep_ratio"] for rows in one for row in rows}, {row["keep_ratio"] for rows in several for row in rows}
    assert keeps == (({1.0}, {1.0}) if scorer == "full" else ({0.05}, {0.1}))
    name = "full prefill" if scorer == "full" else f"`{scorer.replace(' ', '[')}]`" if " " in scorer else f"`{scorer}`"
    cells = [f"{right(rows)}" for rows in one]
    cells += [f"{100 * right(rows) / 572:.1f} ({interval(rows)})" for rows in several]
    assert f"| {name} | {' | '.join(cells)} |" in PAGE


def test_several_needles_against_the_full_prefill(find: Find) -> None:
    keys = {"task": SEVERAL[1]}
    assert f"four keys: {difference(find(scorer='tail queries=24', **keys), find(scorer='full', **keys))}" in STUDY
    short = {**keys, "tokens_asked": 2048}
    ours, full = find(scorer="tail queries=24", **short), find(scorer="full", **short)
    assert f"{sum(row['kept_tokens'] for row in ours) / len(ours):.0f} tokens kept" in STUDY
    assert f"it does not: {difference(ours, full)}" in STUDY
    lost = right(full) - right(find(scorer="lexical", **short))
    assert f"`lexical` loses {100 * lost / len(full):.1f}." in STUDY


def test_scorers(find: Find) -> None:
    part = {"part": "Scorers at equal kept tokens"}
    controls = {"bm25", "lexical", "random", "uniform", "recency", "head_tail", "oracle"}
    scorers = controls | {
        "tail", "tail queries=24", "lookahead", "snapkv", "gemfilter", "head_vote", "entropy_weight", "sink_masked",
        "layer_subset", "mid_layer", "retrieval_heads", "self_information", "embedding", "anchored", "target_attention",
    }  # fmt: skip
    assert (len(scorers - controls), len(controls)) == (15, 7)
    assert "Fifteen that read a model and seven that read none" in STUDY
    easy = {s: find(task=NEEDLE, scorer=s, **part) + find(task="niah_multikey_2", scorer=s, **part) for s in scorers}
    assert {len(rows) for rows in easy.values()} == {60}
    told = STUDY.split("(n = 60) ")[1].split(" get all 60")[0].replace("[", " ").replace("]", "").replace("`", "")
    assert {s for s, rows in easy.items() if right(rows) == 60} == set(told.replace(" and the ", ", ").split(", "))
    assert f"get all 60 ({interval(easy['tail'])})" in STUDY
    below = ["target_attention", "anchored", "head_vote", "mid_layer", "gemfilter"]
    assert ", ".join(f"`{s}` {right(easy[s])}" for s in below) + "." in STUDY
    assert max(right(easy[s]) for s in scorers - set(below) if right(easy[s]) < 60) < right(easy["gemfilter"])
    hard = [right(find(task=task, scorer="oracle", **part)) for task in ("needle_multiquery", "vt shots=0")]
    assert f"the oracle {hard[0]} and {hard[1]} of 30" in STUDY
    kept = {s: sum(row["needle_recall"] for row in find(scorer=s, **part)) for s in scorers - controls}
    assert max(kept, key=lambda s: kept[s]) == "retrieval_heads"
    lead = difference(find(scorer="retrieval_heads", **part), find(scorer="tail", **part), "needle_recall")
    mean, rest = lead.split(" ", 1)
    assert f"leads `tail` by {mean[1:]} points {rest}" in STUDY


def test_anchors(find: Find) -> None:
    part = {"part": "Lexical anchors"}
    wide = [find(scorer=s, keep_ratio=0.05, **part) for s in ("lexical", "tail")]
    assert [right(rows) for rows in wide] == [100, 100]
    assert f"both get 100 ({interval(wide[0])})" in STUDY
    words, ours = (find(scorer=s, keep_ratio=0.02, **part) for s in ("lexical", "tail"))
    kept = [sum(row["kept_tokens"] for row in rows) / len(rows) for rows in (ours, words)]
    figures = f"{interval(ours)}; {kept[0]:.0f} tokens kept against {kept[1]:.0f}"
    assert f"at 0.02 {right(words)} against {right(ours)} ({figures})" in STUDY
    apart = [right(find(scorer="lexical", keep_ratio=0.02, task=task, **part)) for task in ("needle", NEEDLE)]
    assert apart == [50, 50]
    mixed = find(scorer="anchored", keep_ratio=0.05, **part)
    assert f"`anchored`, gets {right(mixed)} at 0.05 ({interval(mixed)})" in STUDY
    chain = {"task": "vt shots=0", "part": RULER}
    ours, words = (find(scorer=s, keep_ratio=0.1, **chain) for s in ("tail queries=24", "lexical"))
    full = right(find(scorer="full", **chain))
    assert f"follows {right(ours)} of {len(ours)} chains ({interval(ours)}; full prefill {full})" in STUDY
    assert f"`lexical` {right(words)} ({interval(words)})" in STUDY
    far = {"task": "vt shots=0", "part": RULER.replace("8K", "32K"), "keep_ratio": 0.1}
    ours, words = (find(scorer=s, **far) for s in ("tail queries=24", "lexical"))
    assert f"at 32K {right(ours)} of {len(ours)} against {right(words)}." in STUDY


def test_what_breaks_first(find: Find) -> None:
    full = {task: right(find(part=RULER, scorer="full", task=task)) for task in (*SINGLE, "cwe", "fwe")}
    assert [full[task] for task in SINGLE] == [12] * 6
    assert not any(right(find(part=RULER, scorer="full", task=t)) for t in ("cwe", "fwe", "qa_1-synth", "qa_2-synth"))

    def ours(keep: float, task: str, scorer: str = "tail queries=24", part: str = RULER) -> int:
        return right(find(part=part, scorer=scorer, task=task, keep_ratio=keep))

    several = ("niah_multiquery-synth", "vt shots=0")
    for task in several:
        assert right(find(part=RULER, scorer="full", task=task)) - ours(0.1, task) == 1
        assert ours(0.05, task) == ours(0.05, task, "oracle") == 0
    assert [ours(keep, task) for keep in (0.05, 0.1) for task in SINGLE] == [12] * 12
    low = [ours(0.02, task) for task in SINGLE]
    assert f"({min(low)} to {max(low)} of 12)" in STUDY
    for keep, part in ((0.05, RULER), (0.02, RULER.replace("8K", "32K"))):
        rows = find(part=part, scorer="tail queries=24", keep_ratio=keep)
        assert f"{sum(row['kept_tokens'] for row in rows) / len(rows):.0f} tokens" in STUDY
    far = RULER.replace("8K", "32K")
    assert [ours(0.02, task, part=far) for task in (*SINGLE, "vt shots=0")] == [10] * 6 + [5]
    four = [ours(0.02, several[0], scorer, far) for scorer in ("tail queries=24", "oracle")]
    assert f"({four[0]} of 10, oracle {four[1]})" in STUDY
