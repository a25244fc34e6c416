"""Sampling and constraints on the device without a device: every launch fits its declaration, graphs are made once."""

from __future__ import annotations

import pytest
from dry_walk import walked

from sp.models.synthetic.synthetic import write_synthetic

WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from sp.decode import Chooser, SamplingDecoder
from sp.decode.base import GraphDecoder
from sp.models import load_model, prefill
from sp.ops.sampling.biased import Penalties
N, NEW = 100, 30
model, ids = load_model(sys.argv[2], device="cuda"), np.arange(N)


class Low:
    def __init__(self):
        self.taken = 0

    def allowed(self):
        return np.full(2, 0xFFFFFFFF, np.uint32)

    def take(self, token):
        self.taken += 1


def begin():
    cache = model.new_cache(N + 4 * NEW, "f16")
    return prefill(model, ids, ids, cache), cache


told = []
ways = (SamplingDecoder(), SamplingDecoder(0.7, top_k=20, top_p=0.9, min_p=0.05), Chooser(None, 0, constraint=Low()),
        Chooser(None, 0, on_choice=told.append, top=20), Chooser(None, 0, penalties=Penalties(bias={3: 2.0})),
        Chooser(None, 0, penalties=Penalties(1.0, 0.5, 1.1, prompt=lambda: range(70))), None)
for way in ways:
    logits, cache = begin()
    decoder = GraphDecoder(model, cache, NEW)
    chooser = way.chooser(3) if isinstance(way, SamplingDecoder) else way
    dry_device.launches.clear()
    launched = []
    for token in decoder.tokens(logits, N, NEW, chooser):
        launched.append(sum(dry_device.launches.values()))
    assert len(launched) == NEW and cache.tokens == N + NEW - 1, (way, len(launched), cache.tokens)
    steps = [after - before for before, after in zip(launched, launched[1:])]
    assert max(steps[:3]) > 10 and max(steps[5:]) < 9, f"replays launch nothing but the choice: {steps}"
    decoder.end()
assert len(told) == NEW and len(told[0].tokens) == 20
logits, cache = begin()
decoder = GraphDecoder(model, cache, NEW)
for chooser in (None, SamplingDecoder().chooser(1), None):  # one decoder for answers of both kinds
    position = cache.tokens
    assert len(list(decoder.tokens(logits, position, 5, chooser))) == 5
    assert cache.tokens == position + 4
"""


@pytest.mark.parametrize("arch", ["tiny-qwen35"])
def test_every_launch_fits(arch, tmp_path) -> None:
    walked(WALK, str(write_synthetic(tmp_path / "m.gguf", arch, "q4_k_m")))
