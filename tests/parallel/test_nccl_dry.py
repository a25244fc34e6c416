"""GPUs over NCCL, none of them real: gathers and means in place, hangs, and a group that works again afterwards."""

from __future__ import annotations

from dry_walk import walked

ENDED = """
def ended(group, work, text, seconds):
    start = time.monotonic()
    try:
        group.run(work)
    except DeviceError as error:
        assert text in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError(text)
    took = time.monotonic() - start
    assert took < seconds, took
def join():
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(2)
"""
"""A group whose work ends in one line and in time, and the end of threads that were left; for scripts to begin with."""

WALK = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import dry_device, dry_nccl
dry_nccl.install(4)
import numpy as np
from sp.errors import ConfigError, DeviceError
from sp.parallel.nccl import NcclGroup
def gather(gpu):
    wholes = [dry_device.empty((gpu.size, 3), np.uint16), dry_device.empty((gpu.size, 5), np.uint8)]
    for step in range(3):
        for whole in wholes:
            whole.host[gpu.rank] = 10 * step + gpu.rank
        gpu.all_gather(*wholes)
    return [whole.host[:, -1].tolist() for whole in wholes]
group = NcclGroup((0, 1, 2, 3), wait_seconds=0.2, leave_seconds=1.0)
for _ in range(2):
    assert group.run(gather) == [[[20, 21, 22, 23]] * 2] * 4
assert dry_nccl.opened == [4] and not dry_nccl.aborted
def fails(gpu):
    if gpu.rank == 1:
        raise dry_nccl.NcclError("NCCL_ERROR_SYSTEM")
    time.sleep(0.05)
    return gather(gpu)
dry_nccl.hung.add(2)
for work, text in ((gather, "queued work did not finish within 0.2 s"), (fails, "GPU 1 of 4: NCCL: NCCL_ERROR")):
    start = time.monotonic()
    try:
        group.run(work)
    except DeviceError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
    assert time.monotonic() - start < 2 and threading.active_count() == 1
assert sorted(dry_nccl.aborted) == [0, 0, 1, 1, 2, 2, 3, 3], dry_nccl.aborted
def mean(gpu):
    found = dry_device.empty((2, 3), np.float32)
    found.host[:] = gpu.rank
    for step in range(100):
        gpu.all_reduce(found)
        found.host[:] += gpu.rank - 1.5
    gpu.all_reduce(found)
    return found.host.tolist()
start = time.monotonic()
try:
    group.run(mean)
except DeviceError as error:
    assert "all-reduce 1: gpu" in str(error) or "queued work did not finish" in str(error), error
assert time.monotonic() - start < 2 and threading.active_count() == 1
dry_nccl.hung.clear()
for _ in range(2):
    assert group.run(mean) == [[[1.5] * 3] * 2] * 4
assert group.run(gather) == [[[20, 21, 22, 23]] * 2] * 4
assert dry_nccl.opened == [4, 4, 4, 4]
def loads_late(gpu, meet):
    for step in range(12):
        if gpu.rank == 2 and step == 9:  # nobody's device may wait for this gpu, whatever it asks of the driver
            time.sleep(0.05)
            assert [dry_nccl.asked[rank] - before[rank] for rank in range(4)] == [9] * 4
        meet(gpu)
for meet in (lambda gpu: gpu.all_reduce(dry_device.empty(3, np.float32)),
             lambda gpu: gpu.all_gather(dry_device.empty((4, 3), np.uint8))):
    before = dict(dry_nccl.asked)
    group.run(lambda gpu: loads_late(gpu, meet))
def ahead(gpu, known, queued):
    gpu.set_warm(known)
    gpu.all_reduce(dry_device.empty(3, np.float32))
    queued.append(gpu.rank)
for known in (False, True):  # whether the first step of a run is waited for, here for ever
    dry_nccl.hung.add(2)
    queued = []
    try:
        group.run(lambda gpu: ahead(gpu, known, queued))
    except DeviceError as error:
        assert "queued work did not finish within 0.2 s" in str(error), error
    assert sorted(queued) == ([0, 1, 2, 3] if known else []), queued
    dry_nccl.hung.clear()
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

STUCK = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import dry_device, dry_nccl
dry_nccl.install(3)
import numpy as np
from sp.errors import DeviceError
from sp.parallel import group as watched
from sp.parallel.nccl import NcclGroup
watched.GRACE_SECONDS, watched.LOOK_SECONDS = 0.2, 0.05
let_go = threading.Event()
def work(gpu):
    whole = dry_device.empty((gpu.size, 3), np.uint16)
    for step in range(7):
        if gpu.rank == 1 and step == 5 and not let_go.is_set():
            let_go.wait()  # a call of the driver that does not return
        gpu.begin_gather(whole)()
    return gpu.rank
def told(text, names):
    ended(group, work, text, 3.5)
    left = sorted({thread.name for thread in threading.enumerate()} - {"MainThread"})
    assert left == names, left
    let_go.set(), [event.set() for event in dry_nccl.stuck.values()]
    join()
    assert threading.active_count() == 1
    let_go.clear(), dry_nccl.stuck.clear()
group = NcclGroup((0, 1, 2), wait_seconds=0.3, leave_seconds=0.8)
told("all-gather 6: GPU 1 did not arrive within 0.3 s", ["sp-gpu-1"])
dry_nccl.stuck["abort"] = threading.Event()
every = ["sp-gpu-0", "sp-gpu-1", "sp-gpu-2"]  # none of them ends, or tells of it
told("all-gather 6: GPU 1 did not arrive within 0.3 s", ["sp-abort", *every])
dry_nccl.stuck["query"] = threading.Event()
let_go.set()
told("all-gather 1: queued work did not finish within 0.3 s", every)
let_go.set()
assert group.run(work) == [0, 1, 2]
"""

FIRST = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import dry_device, dry_nccl
dry_nccl.install(2)
import numpy as np
from sp.kernels import jit
from sp.parallel.nccl import NcclGroup
queued, asked, kept = [], [], []
gather, done = dry_nccl.Communicator.allGather, dry_nccl.Event.done
def gathers(self, *given):
    queued.append((self._rank, dict(came)))
    gather(self, *given)
def asks(self):
    asked.append((dry_nccl.here.device, 0))
    return done.fget(self)
dry_nccl.Communicator.allGather, dry_nccl.Event.done = gathers, property(asks)
came = {0: 0, 1: 0}
def work(gpu):
    whole = dry_device.empty((gpu.size, 3), np.uint16)
    asked.append((gpu.rank, -1))
    for step in range(1, 10):
        if gpu.rank == 1:
            time.sleep(0.05)
        came[gpu.rank] = step
        gpu.begin_gather(whole)()
        asked.append((gpu.rank, step))
    before = asked.count((gpu.rank, 0))
    kept.append(dry_device.empty((1 << 24) + gpu.rank, np.uint8))  # memory of the driver
    assert asked.count((gpu.rank, 0)) == before + 5  # four gathers, and all else that is queued
    gpu.begin_gather(whole)()
    jit._before_loading.get()()  # what loading a kernel begins with
    assert asked.count((gpu.rank, 0)) == before + 7
    return step
assert NcclGroup((0, 1)).run(work) == [9, 9]
assert jit._before_loading.get() is None
first = [seen[1] for rank, seen in queued if rank == 0]
assert first[:9] == [1, 2, 3, 4, 4, 5, 6, 7, 8], first  # the first four only when both had come
for rank in range(2):
    mine = [step for one, step in asked if one == rank]  # 0 where an event was asked for
    mine = mine[mine.index(-1) + 1 :]
    looks = [mine[: mine.index(step)].count(0) for step in range(1, 10)]
    assert looks == [1, 2, 3, 3, 3, 3, 3, 4, 5], mine  # three are waited for, the others four steps later
"""


PEERS = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import dry_device, dry_nccl
dry_nccl.install(3, reachable=True)
import numpy as np
from sp.errors import DeviceError
from sp.parallel import nccl_rank
from sp.parallel.nccl import NcclGroup
nccl_rank.FETCHED_BYTES = 8  # a GPU's part below
held = []
def in_turn(gpu):
    # two gathers under way at a time, ended in order, as a reading in stripes has them
    kept, wholes, seen = [], [dry_device.empty((gpu.size, 2), np.int32) for _ in range(8)], []
    held.extend(wholes)
    for step, whole in enumerate(wholes):
        whole.host[gpu.rank] = 100 * step + gpu.rank
        kept.append((gpu.begin_gather(whole), whole))
        if len(kept) == 2:
            gathered, first = kept.pop(0)
            gathered(), seen.append(first.host[:, 1].tolist())
    gathered, first = kept.pop()
    gathered(), seen.append(first.host[:, 1].tolist())
    return seen, gpu._barrier
group = NcclGroup((0, 1, 2), wait_seconds=0.3, leave_seconds=0.8)
for _ in range(2):
    found = group.run(in_turn)
    assert all(seen == [[100 * step + rank for rank in range(3)] for step in range(8)] for seen, _ in found), found
    assert not found[0][1].published and not found[0][1]._releases
assert not dry_nccl.asked and sorted(set(dry_nccl.fetched)) == sorted(dry_nccl.reached) and len(dry_nccl.reached) == 6
assert len(dry_nccl.fetched) == 2 * 8 * 6, len(dry_nccl.fetched)
own = [(other, to) for other, to in dry_nccl.fetched if to == 1]
assert own[:4] == [(2, 1), (0, 1)] * 2, own[:4]
let_go = threading.Event()
def late(gpu):
    for step in range(7):
        if gpu.rank == 1 and step == 5:
            let_go.wait()
        held.append(dry_device.empty((gpu.size, 4), np.uint16))  # others may read it when this gpu is on its way
        gpu.begin_gather(held[-1])()
ended(group, late, "all-gather 6: GPU 1 did not arrive within 0.3 s", 2.5)
let_go.set(), join()
dry_nccl.hung.add(2)
ended(group, in_turn, "queued work did not finish within 0.3 s", 2.5)
join()
dry_nccl.hung.clear()
assert [seen for seen, _ in group.run(in_turn)] == [seen for seen, _ in found]
assert not dry_nccl.asked
nccl_rank.FETCHED_BYTES = 9
copies = len(dry_nccl.fetched)
assert [seen for seen, _ in group.run(in_turn)] == [seen for seen, _ in found]
assert len(dry_nccl.fetched) == copies and sum(dry_nccl.asked.values()) == 3 * 8
"""


def test_first_steps_are_taken_together_and_loading_waits() -> None:
    walked(FIRST)


def test_gpus_stuck_in_calls_of_the_driver_are_left_behind() -> None:
    walked(ENDED + STUCK)


def test_gathers_hangs_and_refusals() -> None:
    twice, first, few, library = walked(WALK).splitlines()
    assert twice.startswith("GPUs (0, 0): name each once")
    assert first.startswith("GPUs (1, 2): name each once, and first the current one, 0")
    assert few == "5 GPUs requested, but this machine has 4; request fewer"
    assert library.startswith("several GPUs need NCCL; install it with `pip install nvidia-nccl-cu13`")


def test_gpus_that_reach_each_other_fetch_what_they_gather() -> None:
    walked(ENDED + PEERS)
