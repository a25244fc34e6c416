"""`sp bench turn` on a device that only counts: memory by policy, and what waits until the first token is out."""

from __future__ import annotations

import json

import pytest
from dry_walk import walked

WALK = """
import json, sys
from dataclasses import replace
sys.path.insert(0, sys.argv[1])
import dry_device, dry_memory
dry_device.install()
import sp.models.cache.session_cache as snapshots
import sp.models.cache.session_cache as trail
from sp.bench import turn
from sp.bench.ttft import without_ends
from sp.bench.prompts import TranscriptMaker
from sp.session import ConversationOptions
from sp.models.cache.session_cache import SessionCache
from sp.session import Pipeline, RunOptions, embedded, load, synthetic
from sp.studies.sample import sample

document, example = sample()
pair = Pipeline.assemble(
    lambda at: synthetic("tiny-qwen35", "q8_0", device=at),
    lambda at: load(embedded("drafter"), extrapolate=True, device=at),
    device="cuda",
)
pair = replace(pair, target=without_ends(pair.target))
weights = dry_memory.pool.used_bytes()
maker = TranscriptMaker(document, example.question, pair.target)
out, log = {"weights": weights}, []


def told(module, name, what):
    real = getattr(module, name)

    def noting(*given, **more):
        log.append(what)
        return real(*given, **more)

    setattr(module, name, noting)


told(snapshots, "states_on_host", "to host")
told(trail, "take_states", "copy")
told(SessionCache, "settle", "settle")
real = turn.measure_turn


def measured(policy, make, besides):
    log.clear()
    answer = policy.answer
    watched = lambda prompt, on_token: answer(prompt, lambda token: (log.append("token"), on_token(token))[1])
    found = real(type("P", (), {"answer": staticmethod(watched), "host_nbytes": policy.host_nbytes})(), make, besides)
    out.setdefault("logs", {}).setdefault(type(policy).__name__, []).append(list(log))
    out.setdefault("held", {}).setdefault(type(policy).__name__, []).append(policy.nbytes)
    return found


turn.measure_turn = measured
options, sizes = RunOptions(keep_ratio=0.3, max_new_tokens=2), ([3000], 2000)
for keys in ("f16", "q4_0"):
    bench = turn.TurnBench(pair, maker, 2)
    memory = ConversationOptions(keys=keys)
    timings = list(bench.run(*sizes, options, memory))
    out[keys] = {t.cell.policy: t.metrics() for t in timings}
turn.measure_turn = real
out["alone"] = {}
for policy in turn.POLICIES:
    (alone,) = turn.TurnBench(pair, maker, 2, [policy]).run(*sizes, options, memory)
    out["alone"][policy] = alone.metrics()
budget = max(max(m["peak_bytes"], m["start_peak_bytes"]) for m in out["alone"].values()) + (4 << 20)
within = list(turn.TurnBench(pair, maker, 2).run(*sizes, options, memory, [budget]))
out["within"] = {t.cell.policy: t.metrics() for t in within}
out["budget"] = budget
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def found() -> dict:
    printed = walked(WALK)
    return json.loads(printed)


def test_snapshots_leave_the_device_after_the_first_token(found: dict) -> None:
    for name in ("ConversationPolicy", "PrefixPolicy"):
        for log in found["logs"][name][1:]:  # the first turn reads the transcript, with more of them than may wait
            before, _, after = " ".join(log).partition("token")
            assert "copy" in before
            assert "to host" not in before
            assert "settle" in after


def test_each_policy_is_told_its_own_memory(found: dict) -> None:
    """But for what graphs of the others hold while they work, some 2 MB here; their caches have 25 MB and more."""
    for policy, metrics in found["q4_0"].items():
        alone = found["alone"][policy]
        assert metrics["error"] is None
        assert metrics["peak_bytes"] == pytest.approx(alone["peak_bytes"], rel=0.05), policy
        assert metrics["peak_bytes"] > found["weights"]
    sizes = [held[2] for held in found["held"].values()]
    most = max(metrics["peak_bytes"] for metrics in found["q4_0"].values())
    assert min(sum(sizes) - size for size in sizes) > 0.5 * most, "others hold more than that"


def test_keys_in_four_bits_take_less(found: dict) -> None:
    sizes = [found["held"]["ConversationPolicy"][at] for at in (2, 8)]
    assert sizes[1] < sizes[0]
    for keys in ("f16", "q4_0"):
        usage = found[keys]["conversation"]["usage"]
        assert usage["drafted"] < 2500 < usage["cached"]


def test_within_a_budget_each_is_alone_and_keeps_to_it(found: dict) -> None:
    for metrics in found["within"].values():
        assert metrics["order"] == "in blocks"
        assert metrics["error"] is None
        assert metrics["peak_bytes"] <= found["budget"]
