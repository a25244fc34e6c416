"""The embedded draft: its file, that it saves most passes of the target, and that its records are of today's files."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from embedded_pair import ROOT, known_task, recipe

from sp.decode import DECODERS
from sp.gguf import GGUFFile
from sp.session import Pipeline, RunOptions, embedded, load

ASSETS = ROOT / "sp" / "assets"
RECORDS = sorted((ROOT / "results").glob(f"*-2core/{recipe()}/draft.jsonl"))
"""Of the machine that measured it."""
measured = pytest.mark.skipif(not RECORDS, reason="the target's draft is not measured yet")


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for path in RECORDS for line in path.read_text().splitlines()]


def test_the_file_is_small_and_shares_embedding_and_head_with_the_target() -> None:
    with GGUFFile.open(embedded("draft")) as file:
        assert file.nbytes < 6_000_000
        assert file.architecture == "dflash"
        assert {t.type_name for t in file.tensors.values()} == {"F32", "Q8_0"}
        assert not any(name.startswith(("token_embd", "output.")) for name in file.tensors)


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline(load(embedded("target"), device="cpu")).with_speculator(embedded("draft"))


@pytest.mark.slow
@measured
def test_answers_are_greedy_decodings_in_far_fewer_passes(pipeline: Pipeline) -> None:
    """At least half as many tokens a pass as were measured on all tasks."""
    task, tokenizer, passes = known_task(), pipeline.target.tokenizer, {"dflash": 0, "ddtree": 0}
    tokens = 0
    for index in range(2):
        example = task.example(index, 320, lambda text: len(tokenizer.encode(text).ids))
        prompt = example.prompt(pipeline.target.template)
        found = {
            name: pipeline.run(
                prompt, RunOptions(compress="off", decode=DECODERS.build(name), max_new_tokens=64), full=False
            ).answer
            for name in ("greedy", *passes)
        }
        assert len({answer.tokens for answer in found.values()}) == 1
        tokens += len(found["greedy"].tokens)
        for name in passes:
            passes[name] += len(found[name].passes)
    for name, used in passes.items():
        measured = [row for row in rows() if row["decode"] == name]
        rate = sum(row["tokens"] for row in measured) / sum(row["passes"] for row in measured)
        assert tokens / used > max(1, rate / 2)


@measured
def test_records_are_of_the_shipped_files() -> None:
    for role in ("draft", "target"):
        shipped = sha256((ASSETS / f"{role}.gguf").read_bytes()).hexdigest()
        measured = {row[f"{role}_sha256"] for row in rows()}
        assert measured == {shipped}, f"{role}.gguf changed after it was measured: measure it again"


@measured
def test_records_hold_together() -> None:
    for row in rows():
        assert row["accepted"] == pytest.approx(row["tokens"] / row["passes"], abs=1e-3)
        assert row["interval"][0] <= row["accepted"] <= row["interval"][1]
        assert row["equal"] == row["n"], "an answer was not greedy decoding's"
        assert row["one_pass"] <= row["n"] <= row["passes"]


@measured
def test_the_model_gpu_prints_every_record() -> None:
    gpu = (ASSETS / "MODEL_CARD.md").read_text().splitlines()
    for row in rows():
        kept = "all" if row["keep"] == 1 else f"{100 * row['keep']:g}% of the haystack + needle"
        start = f"| {row['decode']} | {row['task']} | {row['length']} | {kept} | {row['n']} |"
        lines = [line for line in gpu if line.startswith(start)]
        assert len(lines) == 1, row
        assert f"| {row['accepted']:.2f} |" in lines[0]


@measured
def test_a_tree_accepts_no_less_than_a_chain() -> None:
    by_way = {way: [r["tokens"] / r["passes"] for r in rows() if r["decode"] == way] for way in ("dflash", "ddtree")}
    assert (np.array(by_way["ddtree"]) >= np.array(by_way["dflash"]) - 1e-9).all()
