"""Cards over NCCL without a card: gathers and means in place, hangs, and a group that works again afterwards."""

from __future__ import annotations

from dry_walk import walked

WALK = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import dry_device, dry_nccl
dry_nccl.install(4)
import numpy as np
from sp.errors import ConfigError, DeviceError
from sp.parallel.nccl import NcclGroup
def gather(card):
    wholes = [dry_device.empty((card.size, 3), np.uint16), dry_device.empty((card.size, 5), np.uint8)]
    for step in range(3):
        for whole in wholes:
            whole.host[card.rank] = 10 * step + card.rank
        card.all_gather(*wholes)
    return [whole.host[:, -1].tolist() for whole in wholes]
group = NcclGroup((0, 1, 2, 3), wait_seconds=0.2, leave_seconds=1.0)
for _ in range(2):
    assert group.run(gather) == [[[20, 21, 22, 23]] * 2] * 4
assert dry_nccl.opened == [4] and not dry_nccl.aborted
def fails(card):
    if card.rank == 1:
        raise dry_nccl.NcclError("NCCL_ERROR_SYSTEM")
    time.sleep(0.05)
    return gather(card)
dry_nccl.hung.add(2)
for work, text in ((gather, "what was queued did not end within 0.2 s"), (fails, "card 1 of 4: NCCL: NCCL_ERROR")):
    start = time.monotonic()
    try:
        group.run(work)
    except DeviceError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
    assert time.monotonic() - start < 2 and threading.active_count() == 1
assert sorted(dry_nccl.aborted) == [0, 0, 1, 1, 2, 2, 3, 3], dry_nccl.aborted
def mean(card):
    found = dry_device.empty((2, 3), np.float32)
    found.host[:] = card.rank
    for step in range(100):
        card.all_reduce(found)
        found.host[:] += card.rank - 1.5
    card.all_reduce(found)
    return found.host.tolist()
start = time.monotonic()
try:
    group.run(mean)
except DeviceError as error:
    assert "all-reduce 1: card" in str(error) or "what was queued did not end" in str(error), error
assert time.monotonic() - start < 2 and threading.active_count() == 1
dry_nccl.hung.clear()
for _ in range(2):
    assert group.run(mean) == [[[1.5] * 3] * 2] * 4
assert group.run(gather) == [[[20, 21, 22, 23]] * 2] * 4
assert dry_nccl.opened == [4, 4, 4, 4]
for devices, kind in (((0, 0), ConfigError), ((1, 2), ConfigError), (tuple(range(5)), DeviceError)):
    try:
        NcclGroup(devices)
    except kind as error:
        print(error)
sys.modules["cupy.cuda.nccl"].available = False
try:
    NcclGroup((0, 1))
except DeviceError as error:
    print(error)
"""


def test_gathers_hangs_and_refusals() -> None:
    twice, first, few, library = walked(WALK).splitlines()
    assert twice.startswith("cards (0, 0): each once")
    assert first.startswith("cards (1, 2): each once, and first the one in use, 0")
    assert few == "5 cards were asked for, and this machine shows 4; ask for fewer"
    assert library.startswith("several cards need NCCL; `pip install nvidia-nccl-cu13`")
