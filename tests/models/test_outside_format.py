"""A format from outside the package, that of docs/extending/format.md: decoded, run, inspected, on a dry device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from dry_walk import walked
from outside_format import outside_format, write_outside

from sp.models import load_model, prefill
from sp.models.network.weights import map_leaves
from sp.models.synthetic.synthetic import random_blocks
from sp.planning.inspect import inspect_file
from sp.quant import F32, BlockFormat, Weight, registry

WALK = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import dry_device
dry_device.install()
import numpy as np
from outside_format import outside_format
from sp.gguf import GGUFFile
from sp.kernels import forced_path
from sp.models import load_model, prefill
from sp.models.synthetic.random_store import RandomStore
from sp.models.network.weights import ModelWeights, map_leaves
from sp.quant import Q8_0
fmt = outside_format()
model = load_model(sys.argv[3], device="cuda")
with GGUFFile.open(sys.argv[3]) as file:
    table = file.weight("token_embd.weight").dense()
    held = model.weights.embed
    assert held.format is Q8_0, held.format
    assert (held.data.get() == Q8_0.encode(table)).all()
    plan = [(name, info.shape, fmt if len(info.shape) == 2 and "conv1d" not in name else file.weight(name).format)
            for name, info in file.tensors.items()]
assert model.weights.output.format is Q8_0
names = set()
map_leaves(model.weights.blocks, lambda leaf: names.add(leaf.format.name) if hasattr(leaf, "format") else None)
assert names == {"Q8_0"}, names
ids = np.arange(100)
for path in ("sm_90a", "portable"):
    with forced_path(path):
        assert prefill(model, ids, ids, model.new_cache(100)).shape == (model.config.vocab,)
store = RandomStore(model.config, plan)
weights = ModelWeights.build(store)
assert weights.embed.format is Q8_0 and weights.output.format is Q8_0
assert [each.tensors + 1 for each in store.repacked] == [each.tensors for each in model.repacked]  # a tied table, twice
print(*model.repacked, sep="\\n")
"""
TOLD = "72 tensors of Q1_0 are re-packed as Q8_0 for the GPU: 5.8 MB -> 43.5 MB"


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockFormat]:
    """The format, known for as long as a test runs."""
    known = dict(registry._formats)
    yield outside_format()
    registry._formats.clear()
    registry._formats.update(known)


def test_it_decodes_as_ggml_does(signs: BlockFormat) -> None:
    kind = gguf.GGMLQuantizationType(signs.ggml_type)
    assert kind.name == signs.name
    assert gguf.GGML_QUANT_SIZES[kind] == (signs.block_size, signs.block_bytes)
    blocks = np.random.default_rng(0).integers(0, 256, (6, 18), np.uint8)
    blocks[:, 1] &= 0xBF
    for block, values in zip(blocks, signs.decode(blocks), strict=True):
        d = np.float32(block[:2].view("<f2")[0])
        assert values.tolist() == [d if block[2 + k // 8] >> k % 8 & 1 else -d for k in range(128)]


def test_it_encodes_to_the_nearest_signs(signs: BlockFormat) -> None:
    values = np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)
    got = signs.decode(signs.encode(values)).reshape(-1, 128)
    means = np.abs(values).reshape(-1, 128).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(got, np.sign(values).reshape(-1, 128) * means, rtol=1e-3)


def test_random_blocks_of_it(signs: BlockFormat) -> None:
    blocks = random_blocks(np.random.default_rng(1), signs, 500, 0.02)
    assert blocks.shape == (500, 18)
    assert signs.decode(blocks).mean() == pytest.approx(0, abs=1e-3)


def test_a_model_of_it_runs_on_the_cpu(signs: BlockFormat, tmp_path: Path) -> None:
    path, ids = write_outside(tmp_path / "m.gguf"), np.arange(200)
    packed = load_model(path)
    assert packed.weights.output.format is signs

    def plain(leaf: object) -> object:
        return Weight.from_floats(leaf.name, leaf.dense(), F32) if isinstance(leaf, Weight) else leaf

    decoded = load_model(path)
    decoded.weights = map_leaves(decoded.weights, plain)
    got, want = (prefill(model, ids, ids, model.new_cache(200)) for model in (packed, decoded))
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert want.std() > 0.1
    assert packed.repacked == ()


def test_inspect_says_what_it_costs(signs: BlockFormat, tmp_path: Path) -> None:
    info = inspect_file(write_outside(tmp_path / "m.gguf"))
    assert info["warnings"] == []
    assert json.loads(json.dumps(info["repacked"])) == [
        {"source": "Q1_0", "target": "Q8_0", "tensors": 71, "source_bytes": 5455872, "target_bytes": 41222144}
    ]


def test_the_device_holds_it_re_packed(signs: BlockFormat, tmp_path: Path) -> None:
    path = write_outside(tmp_path / "m.gguf")
    assert walked(WALK, str(Path(__file__).parents[1]), str(path)).splitlines() == [TOLD]
