"""Stacks of cold layers come over in time and whole, and nothing is overwritten that is still read.

The device only counts, see `dry_device`; its streams here know what has happened before what, by vector clocks.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from dry_walk import walked

from sp.models.layer.cold_experts import _Slot

WALK = """
import ctypes, json, sys
from collections import Counter
sys.path.insert(0, sys.argv[1])
import dry_device, dry_memory
dry_device.install()
import cupy
import numpy as np
from sp.models.layer.cold_experts import _Slot, ring_bytes, StackRing
from sp.models.layer.cold_experts import allocate_pinned
from sp.quant import Q8_0

class Ordered(dry_device.Stream):
    def __init__(self, non_blocking=False, ptr=None):
        super().__init__(non_blocking, len(known) + 1 if ptr is None else ptr)
        self.clock = Counter()
        known[self.ptr] = self

    def did(self):
        self.clock[self.ptr] += 1
        return self.clock.copy()

    def record(self, event=None):
        return self.clock.copy()

    def wait_event(self, event):
        self.clock |= event

known = {}
main = Ordered(ptr=99)
dry_device.streams.stack[0] = main
cupy.cuda.Stream = Ordered
before = lambda a, b: all(b[stream] >= count for stream, count in a.items())
copied, read, log = {}, {}, []

def memcpy(target, source, nbytes, kind, stream):
    assert all(before(at, known[stream].clock) for at in read.get(target, [])), "overwrites what is read"
    ctypes.memmove(target, source, nbytes)
    copied[target] = known[stream].did()
    log.append(["copy", names[source]])

cupy.cuda.runtime.memcpyAsync = memcpy

def stacks(layer, rows):
    made = []
    for i in range(3):
        w = allocate_pinned(f"{layer}.{i}", Q8_0, (rows, 64))
        w.data.host[:] = np.random.default_rng([layer, i]).integers(0, 256, w.nbytes, np.uint8)
        names[w.data.data.ptr] = w.name
        made.append(w)
    return made

names = {}
layers = {layer: stacks(layer, 64 * (1 + layer % 3)) for layer in json.loads(sys.argv[2])}
ring = StackRing(layers, json.loads(sys.argv[3]))
assert dry_memory.pool.used_bytes() == 0, "room is taken at the first use"
for layer in json.loads(sys.argv[4]):
    log.append(["use", layer])
    with ring.stacks_on_device(layer) as lent:
        for w, source in zip(lent, layers[layer], strict=True):
            assert (w.name, w.shape) == (source.name, source.shape)
            assert (w.data.host == source.data.host).all(), "another layer's bytes"
            assert before(copied[w.data.data.ptr], main.clock), "reads before it is there"
            read.setdefault(w.data.data.ptr, []).append(main.did())
assert dry_memory.pool.used_bytes() <= ring.room == ring_bytes([[w.nbytes for w in s] for s in layers.values()])
del lent, w
gone = [ring.drop(), ring.drop()]
print(json.dumps({"log": log, "gone": gone, "left": dry_memory.pool.used_bytes()}))
"""


def use(layers: list[int], ahead: list[int], order: list[int]) -> list[str]:
    """What happened, layer by layer: uses and copies."""
    found = json.loads(walked(WALK, *(json.dumps(given) for given in (layers, ahead, order))))
    assert found["gone"] == [True, False]
    assert found["left"] == 0
    told = [kind + " " + str(what).split(".")[0] for kind, what in found["log"]]
    return [one for i, one in enumerate(told) if one.startswith("use") or one != told[i - 1]]


def test_the_next_layer_is_on_its_way_when_one_is_read() -> None:
    told = use([1, 3, 5, 7], [1, 3, 5], [1, 3, 5] * 2)
    assert told == [
        *("use 1", "copy 1", "copy 3"),
        *("use 3", "copy 5"),
        *("use 5", "copy 1"),  # of the next chunk
        *("use 1", "copy 3", "use 3", "copy 5", "use 5", "copy 1"),
    ]


def test_a_layer_that_is_read_chunk_by_chunk_is_copied_once() -> None:
    assert use([1, 3, 5], [1, 3, 5], [1, 1, 1, 3, 3]) == [
        *("use 1", "copy 1", "copy 3", "use 1", "use 1", "use 3", "copy 5", "use 3"),
    ]


def test_a_layer_out_of_turn_is_copied_when_asked_for() -> None:
    told = use([1, 3, 7], [1, 3], [1, 3, 7, 1, 7])
    assert told == [
        *("use 1", "copy 1", "copy 3"),
        *("use 3", "use 7", "copy 7", "copy 1"),
        *("use 1", "copy 3", "use 7", "copy 7"),  # the first of a new chunk is still there
    ]


@pytest.mark.parametrize("order", [[4], [4, 4, 4]])
def test_one_layer_has_one_place(order) -> None:
    assert use([4], [4], order) == ["use 4", "copy 4", *["use 4"] * (len(order) - 1)]
    assert use([4], [], order) == ["use 4", "copy 4", *["use 4"] * (len(order) - 1)]


def test_places_are_told_apart_without_looking_at_what_lies_there() -> None:
    """Arrays have no truth: comparing them stopped the second chunk of a prompt on a device."""
    places = [_Slot(np.zeros(2), None) for _ in range(2)]
    places.remove(places[1])
    assert len(places) == 1
