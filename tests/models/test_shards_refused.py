"""What GPUs cannot share is refused in one line, and a GPU that fails or hangs ends the others and no later run."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from shared_models import ATTENTION, IDS, WHERE, N, file_of, read_all
from tiny_models import write_tiny

from sp.errors import ConfigError, DeviceError, PromptError
from sp.models import Model, load_model, load_shards, prefill
from sp.models.families import base
from sp.models.layer.feed_forward import GatedMLP
from sp.models.synthetic.synthetic import write_synthetic
from sp.parallel.host import HostGroup
from sp.quant import Q4_K

REFUSED = [
    (
        "qwen3",
        {"attention__head_count": 6},
        4,
        "4 GPUs cannot share 2 kv heads, 48 columns of feed-forward; 1 or 2 can",
    ),
    (
        "qwen35",
        ATTENTION,
        4,
        r"share 4 kv heads, 2 key heads of recurrent layers, 48 columns of feed-forward; 1 or 2 can",
    ),
    ("qwen3", ATTENTION | {"feed_forward_length": 50}, 4, "share 4 kv heads, 50 columns of feed-forward; 1 or 2 can"),
]


@pytest.mark.parametrize(("arch", "sizes", "gpus", "text"), REFUSED)
def test_what_does_not_come_out_even_is_refused(arch, sizes, gpus, text, tmp_path) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, **sizes)
    with pytest.raises(ConfigError, match=text) as found:
        load_shards(path, HostGroup(gpus))
    assert "\n" not in str(found.value)


def test_blocks_experts_and_families_without_shares_are_refused(tmp_path, monkeypatch) -> None:
    sizes = ATTENTION | {"embedding_length": 256, "feed_forward_length": 256}
    path = write_tiny(tmp_path / "m.gguf", "qwen3", fmt=Q4_K, **sizes)
    with pytest.raises(
        ConfigError, match=r"blk.0.ffn_down.weight: 256 columns in Q4_K have blocks of 256, which 2 GPUs"
    ):
        load_shards(path, HostGroup(2))
    path = write_synthetic(tmp_path / "experts.gguf", "tiny-qwen3moe", "q4_k_m")
    with pytest.raises(ConfigError, match=r"blk.0.ffn_down_exps.weight: 256 columns in Q\d_K have blocks of 256"):
        load_shards(path, HostGroup(2))

    class Other:
        """A feed-forward of somebody's own."""

    build = base.ARCHITECTURES["qwen3"]
    own = replace(build, layer=replace(build.layer, ffn=lambda *where: (GatedMLP.build(*where), Other())[1]))
    monkeypatch.setitem(base._records, "qwen3", own)
    with pytest.raises(ConfigError, match="several GPUs cannot share Other, which has no method `shard`"):
        load_shards(file_of(tmp_path, "qwen3"), HostGroup(2))


def test_one_that_fails_ends_all_and_the_model_still_works(tmp_path) -> None:
    shards = load_shards(file_of(tmp_path, "qwen3"), HostGroup(2))

    def fails(model: Model) -> None:
        cache = model.new_cache(N)
        prefill(model, IDS[:9], WHERE[:9], cache)
        if model is shards.models[1]:
            raise PromptError("enough")
        prefill(model, IDS[9:20], WHERE[9:20], cache)

    with pytest.raises(PromptError, match="GPU 1 of 2: enough"):
        shards.run(fails)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sp-gpu")]
    with pytest.raises(PromptError, match=r"GPU [01] of 2: token id 60 is outside the vocabulary"):
        shards.run(lambda model: prefill(model, np.array([60]), np.arange(1), model.new_cache(5)))
    with pytest.raises(ConfigError, match="runs only together with the other shards"):
        read_all(shards.models[0])
    assert len(shards.run(read_all)) == 2


def test_one_that_was_left_behind_disturbs_nobody(tmp_path) -> None:
    group = HostGroup(2, wait_seconds=0.2, leave_seconds=0.2)
    shards, let_go = load_shards(file_of(tmp_path, "qwen3"), group), threading.Event()

    def stays(model: Model) -> None:
        cache = model.new_cache(N)
        prefill(model, IDS[:9], WHERE[:9], cache)
        if model is shards.models[1]:
            let_go.wait()
        prefill(model, IDS[9:20], WHERE[9:20], cache)

    with pytest.raises(DeviceError, match="GPU 1 did not arrive"):
        shards.run(stays)
    (left,) = [thread for thread in threading.enumerate() if thread.name.startswith("sp-gpu")]
    group.wait_seconds = 5.0

    def again(model: Model) -> list[np.ndarray]:
        cache = model.new_cache(N)
        prefill(model, IDS[:9], WHERE[:9], cache)
        if model is shards.models[0]:
            let_go.set()
            left.join(5)
        return read_all(model)

    for found in shards.run(again):
        for mine, its in zip(found, read_all(load_model(file_of(tmp_path, "qwen3"))), strict=True):
            np.testing.assert_allclose(mine, its, atol=2e-5 * np.abs(its).max())
    assert not left.is_alive()
