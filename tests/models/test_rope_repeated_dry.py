"""Launches that are repeated turn keys by the RoPE of their own reading alone, without a device."""

from __future__ import annotations

from pathlib import Path

import pytest
from dry_walk import walked
from tiny_models import VOCAB, write_tiny

from sp.models import RopeScaling, load_model
from sp.quant import Q8_0

WALK = """
import sys
sys.path[:0] = sys.argv[1], sys.argv[1] + "/.."
import dry_device
N, VOCAB = int(sys.argv[4]), int(sys.argv[3])
dry_device.H200["major"] = int(sys.argv[5])
dry_device.install()
import numpy as np
from sp.kernels import launch_replay
from sp.models import RopeScaling, Hooks, load_model
from sp.models.run.replay import read_with_replay
from sp.ops.attention.attention_heads import turns
model, seen, again = load_model(sys.argv[2], device="cuda"), [], []
def tell(entry, values):
    if "heads" in entry:
        magnitude = values[-8 if entry == "attention_heads" else -1]  # arrays of a basis and exact rows come after it
        seen.append((set(value for value in values if value > 1 << 32), magnitude))
dry_device.told.append(tell)
repeat = launch_replay.LaunchReplay.__call__
def counted(self, addresses):
    again.append(len(seen))
    repeat(self, addresses)
launch_replay.LaunchReplay.__call__ = counted
scaled = RopeScaling("yarn", 2.0).applied(model.config).rope
for reader in (model, model.with_rope(scaled), model):
    seen.clear(), again.clear()
    assert read_with_replay(reader, np.arange(N) % VOCAB, np.arange(N), Hooks(), rows=8, depth=8)
    other = scaled if reader is model else model.config.rope
    table, others = (turns(rope, 0).data.ptr for rope in (reader.config.rope, other))
    assert len(seen) >= 7 and again, (len(seen), again)
    assert all(table in arrays and others not in arrays for arrays, _ in seen), "keys of one layer by another table"
    print(*sorted({magnitude for _, magnitude in seen}))
"""


@pytest.mark.parametrize("major", [8, 9])
def test_every_layer_is_turned_by_the_rope_of_its_reading(major: int, tmp_path: Path) -> None:
    sizes = {"embedding_length": 256, "feed_forward_length": 256, "block_count": 8, "context_length": 600}
    sizes |= {"attention.key_length": 128, "attention.value_length": 128}
    path = write_tiny(tmp_path / "tiny.gguf", "qwen3", fmt=Q8_0, **sizes)
    printed = walked(WALK, str(path), str(VOCAB), "300", str(major)).split()
    scaled = RopeScaling("yarn", 2.0).applied(load_model(path).config).rope.magnitude
    assert [float(one) for one in printed] == pytest.approx([1.0, scaled, 1.0])
