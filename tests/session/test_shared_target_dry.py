"""Runs on several devices without a device: the target shared, graphs made once, what is kept and what is let go."""

from __future__ import annotations

from dry_walk import walked

WALK = """
import sys, threading
sys.path.insert(0, sys.argv[1])
import dry_nccl
dry_nccl.install(2)
from dataclasses import replace
from sp.errors import DeviceError
from sp.models import load_draft
from sp.session import Pipeline, RunOptions, embedded
from sp.prompt import Prompt
from sp.studies.sample import sample

pair = Pipeline.open(device="cuda", gpus=2).with_speculator(embedded("draft"))
group, residency = pair.target.model.shards.group, pair.memory_manager
group.wait_seconds, group.leave_seconds = 0.5, 1.0
assert group is not pair.gpus.group
document, example = sample()
prompt = Prompt.from_document(document[:6000], example.question, pair.target.template)
NEW = 8

def run(**options):
    dry_nccl.replayed.clear(), dry_nccl.captured.clear()
    given = {"keep_ratio": 0.2, "compress": "always", "max_new_tokens": NEW} | options
    found = pair.run(prompt, RunOptions(**given), full=False).answer
    kept = [pool.idle for pool in residency.cache_pool.gpus.pools]
    assert None not in kept and residency.cache_pool.idle is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sp-gpu")]
    return found, kept

def graphs():
    return sorted(dry_nccl.replayed), {rank: len(counts) for rank, counts in dry_nccl.captured.items()}

first, kept = run()
facts = first.trace.facts
assert facts["cards"] == ["drafter: read by 2 GPUs together", "target: shared by 2 GPUs, 13.5 + 13.5 MB of weights"]
peaks = facts["card_peaks"]
assert len(peaks) == 2 and min(peaks) > 27e6, peaks
replayed, captured = graphs()
assert captured[0] == captured[1] > 0 and replayed == sorted([0, 1] * (NEW - 2)), (replayed, captured)
for reading in ("captured", "replayed", "replayed"):
    answer, again = run()
    assert again == kept, "caches are made once"
    assert answer.trace.facts["prefill_read"].keys() == {reading}, answer.trace.facts["prefill_read"]
    assert graphs()[0] == sorted([0, 1] * NEW), graphs()
assert graphs()[1] == {}
answer, again = run(decode="ddtree[budget=9]")
assert again == kept and graphs()[1][0] == graphs()[1][1] > 0
run(decode="ddtree[budget=9]")
assert not dry_nccl.captured
run(decode="sample[temperature=0.7]")
dry_nccl.stalled.add(1)
for _ in range(2):
    try:
        run()
    except DeviceError as error:
        print(error)
    assert [pool.idle for pool in residency.cache_pool.gpus.pools] == [None, None]
    dry_nccl.stalled.clear()
    answer, again = run()
    assert graphs()[0] == sorted([0, 1] * (NEW - 2)), "graphs of ended communicators are gone"
    run(), run()
    dry_nccl.stalled.add(0)
assert residency.cache_pool.gpus.drop() and not residency.cache_pool.gpus.drop()
dry_nccl.stalled.clear()
dry_nccl.unable.add(0)
answer, _ = run()
print(*answer.trace.facts["cards"], sep="|")
"""


def test_graphs_caches_and_failures() -> None:
    one, other, told = walked(WALK).splitlines()
    assert "queued work did not finish within 0.5 s" in one
    assert "queued work did not finish within 0.5 s" in other
    assert told.endswith("not in CUDA graphs: RuntimeError: operation not permitted when stream is capturing")
