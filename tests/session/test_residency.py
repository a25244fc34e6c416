"""Two models under a budget of device memory, on a device that only counts: who leaves, who comes back, and whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sp.errors import ConfigError
from sp.session import Pipeline
from sp.session.device_memory import STEP, parse_bytes

DRY = str(Path(__file__).parents[1] / "models")
WALK = """
import hashlib, json, sys
from dataclasses import replace
sys.path.insert(0, sys.argv[1])
import dry_device, dry_memory
dry_device.install()
from sp.errors import DeviceError, PromptError
from sp.models.device.parts import arrays_of
from sp.session import Pipeline, RunOptions, embedded, load, synthetic
from sp.prompt import Prompt
from sp.studies.sample import sample

def digest(pair):
    found = hashlib.sha256()
    for loaded in (pair.target, pair.drafter):
        for array in arrays_of(loaded.model.weights):
            found.update(array.host.tobytes())
    return found.hexdigest()

document, example = sample()
def other_words(loaded):
    # a vocabulary of its own, or one pass makes the tokens of both
    return replace(loaded, tokenizer=synthetic("tiny-qwen3", "q8_0", device="cpu").tokenizer)


pair = Pipeline.assemble(
    lambda at: other_words(load(embedded("target"), device=at)),
    lambda at: load(embedded("drafter"), extrapolate=True, device=at),
    device="cuda",
)
prompt = Prompt.from_document(document[:24000], example.question, pair.target.template)
options = RunOptions(keep_ratio=0.1, compress="always", max_new_tokens=4)

out = {}

def run(pair):
    result = pair.run(prompt, options, full=False)
    stages = [[stage.name, stage.tokens, stage.beside] for stage in result.answer.trace.stages]
    out.setdefault("stages" if pair.memory_manager.budget is None else "tight stages", stages)
    return result.answer.trace.facts["residency"]

out.update({"weights": dry_memory.pool.used_bytes(), "digest": digest(pair)})
out["free"] = run(pair)
out["idle"] = []
for _ in range(3):
    run(pair)
    out["idle"].append(dry_memory.pool.used_bytes())
wide = pair.within(2 << 30)  # with a budget, turns of layers are not repeated, which holds what they make
need = wide.run(prompt, options, full=False).answer.trace.facts["residency"]["peak_bytes"]
for name, budget in json.loads(sys.argv[2]).items():
    if budget == "need":
        budget = need - (8 << 20)
    if budget == "bare":  # holds the target and its cache, and no work
        budget = pair.target.model.nbytes + pair.target.model.new_cache(2000).nbytes
    dry_memory.pinned.clear()
    tight = pair.within(budget)
    try:
        out[name] = [run(tight) for _ in range(3)]
    except (DeviceError, PromptError) as error:
        out[name] = str(error)
    out[name + " pinned"] = len(dry_memory.pinned)
    out[name + " used"] = dry_memory.pool.used_bytes()
    out[name + " total"] = dry_memory.pool.total_bytes()
few = Prompt.from_document(document[:6000], example.question, pair.target.template)
most = replace(options, keep_ratio=0.9)
need = pair.within(2 << 30).run(few, most, full=False).answer.trace.facts["residency"]["peak_bytes"]
tight = pair.within(need - (4 << 20))  # the target needs more than scoring does, so the drafter leaves last
out["few"] = [tight.run(few, most, full=False).answer.trace.facts["residency"] for _ in range(2)]
again = pair.within(None)
for _ in range(2):
    out["after"] = run(again)
scorer = type(options.scorer)
score, tries = scorer.score, []

def short(*given):
    tries.append(1)
    if len(tries) == 1 and again.memory_manager._leave_room(out["leaving"]) or not out["leaving"]:
        raise DeviceError("the GPU's memory is full")
    return score(*given)

scorer.score = short
for out["leaving"] in (1, 0):
    tries.clear()
    try:
        run(again)
    except DeviceError as error:
        out["refused"] = str(error)
    out[f"tries {out['leaving']}"] = len(tries)
scorer.score = score
for loaded in ("target", "drafter"):
    again.memory_manager.prepare(loaded, 100)
out["digest after"] = digest(again)
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def found() -> dict:  # type: ignore[type-arg]
    budgets = {"tight": "need", "bare": "bare", "none": 1 << 20}
    done = subprocess.run(
        [sys.executable, "-c", WALK, DRY, json.dumps(budgets)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def kinds(report: dict) -> list[tuple[str, str]]:  # type: ignore[type-arg]
    return [(note["kind"], note["name"]) for note in report["transitions"]]


def test_without_a_budget_everything_stays(found) -> None:  # type: ignore[no-untyped-def]
    assert kinds(found["free"]) == [("load", "target"), ("load", "drafter")]
    assert found["free"]["peak_bytes"] > found["weights"]
    assert found["free"]["budget_bytes"] is None


def test_requests_leave_nothing_behind(found) -> None:  # type: ignore[no-untyped-def]
    assert len(set(found["idle"])) == 1


def test_a_tight_budget_is_kept_and_models_take_turns(found) -> None:  # type: ignore[no-untyped-def]
    first, second, third = found["tight"]
    for report in (first, second, third):
        assert report["peak_bytes"] <= report["budget_bytes"]
        assert 0 <= report["peak_bytes"] - max(used for _, used in report["memory"]) < STEP
        assert {"offload", "onload"} <= {note["kind"] for note in report["transitions"]}
    assert kinds(second) == kinds(third)
    parked = sum(n["nbytes"] for n in second["transitions"] if n["kind"] == "offload")
    assert 0 < parked < found["weights"]  # only as much as needed
    assert found["tight total"] <= second["budget_bytes"]


def test_a_run_is_reported_after_its_drafter_has_left(found) -> None:  # type: ignore[no-untyped-def]
    for report in found["few"]:
        assert kinds(report)[-1] == ("offload", "drafter")


def test_the_drafter_does_not_wait_for_the_targets_tokens(found) -> None:  # type: ignore[no-untyped-def]
    names = [name for name, _, _ in found["stages"]]
    assert names[:3] == ["tokenise for drafter", "score", "tokenise"]
    assert names[3:] == ["select", "compress", "target prefill", "decode"]
    assert found["stages"][2][2] > 0
    assert [name for name, _, _ in found["tight stages"]][3] == "onload target"


def test_work_is_begun_anew_once_if_its_failure_made_room(found) -> None:  # type: ignore[no-untyped-def]
    assert found["tries 1"] == 2
    assert found["tries 0"] == 1
    assert found["refused"] == "the GPU's memory is full"


def test_weights_come_back_as_they_left(found) -> None:  # type: ignore[no-untyped-def]
    assert found["digest after"] == found["digest"]


def test_a_part_is_copied_to_the_host_once(found) -> None:  # type: ignore[no-untyped-def]
    parts = {part for report in found["tight"] for part in range(sum(n["parts"] for n in report["transitions"]))}
    assert 0 < found["tight pinned"] <= len(parts)
    leaving = [sum(n["parts"] for n in report["transitions"] if n["kind"] == "offload") for report in found["tight"]]
    assert found["tight pinned"] <= max(leaving) + leaving[0]


def test_what_cannot_fit_is_refused_in_one_line_and_leaves_nothing_behind(found) -> None:  # type: ignore[no-untyped-def]
    assert "the GPU's memory is full" in found["bare"]
    assert " GiB at least, and the budget is 0.00 GiB" in found["none"]  # before anything is read
    for name in ("bare", "none"):
        assert "--vram" in found[name]
        assert "\n" not in found[name]
        assert found[f"{name} used"] <= found["weights"]
    assert found["after"]["peak_bytes"] > 0  # and the next request was served


@pytest.mark.parametrize("text", ["", "g", "24", "-3g", "0", "1e99g", "three", "nan"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="24g"):
        parse_bytes(text)


def test_sizes() -> None:
    assert [parse_bytes(t) for t in ("24g", "24GiB", "0.5m", 4096, "1gb")] == [
        24 << 30, 24 << 30, 1 << 19, 4096, 1 << 30,
    ]  # fmt: skip


def test_a_budget_means_nothing_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match="omit it"):
        Pipeline.open(device="cpu", vram=1 << 30)
