"""How fast a host plans launches, looked at without a device; and that records of whole passes say it."""

from __future__ import annotations

import pytest
from dry_walk import walked

from sp.bench.drafter import ScoringTiming, ScoringTrial
from sp.bench.model import Timing, Trial, run_tests
from sp.bench.timing import HostTime
from sp.models import load_model
from sp.session.loaded import embedded

LOOK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
from sp.bench.timing import TOGETHER, HostTime
host = HostTime("cuda")
assert host.metrics() == {}
for _ in range(3):
    host.look()
assert dry_device.launches == {"rms_norm": 3 * (TOGETHER + 1)}, dry_device.launches
print(host.metrics()["launch_us"])
"""


def test_a_look_is_a_hundred_launches() -> None:
    assert 0 < float(walked(LOOK)) < 1e5


def test_records_say_it_and_those_of_the_cpu_do_not() -> None:
    told = {"launch_us": 17.5}
    drafted = ScoringTiming(ScoringTrial(9, {}), (1.0,), 1.0, {}, 0, 0, 0.0, host=told).metrics()
    read = Timing(Trial(9), (1.0,), 0, host=told).metrics()
    assert drafted["launch_us"] == read["launch_us"] == 17.5
    assert "launch_us" not in Timing(Trial(9), (1.0,), 0).metrics()


def test_decoding_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """It launches no norm by itself, and its records name the kernels that they rest on."""
    looks: list[HostTime] = []
    monkeypatch.setattr(HostTime, "look", lambda self: looks.append(self))
    model = load_model(embedded("drafter"))
    assert len(list(run_tests(model, [Trial(9), Trial(9, 3)], 2))) == 2
    assert len(looks) == 2
