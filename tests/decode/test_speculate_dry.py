"""The loop on the device without a device: every launch fits its declaration, graphs are made once, counts add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dry_walk import walked

from sp.models.synthetic.dflash_synthetic import write_synthetic_draft
from sp.models.synthetic.synthetic import write_synthetic

ARCHS = ("tiny-qwen3", "tiny-qwen35", "tiny-llama")
WALK = """
import json, sys, traceback
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from sp.decode import DDTree, DFlash
from sp.decode.speculate import speculate
from sp.errors import PromptError
from sp.models import Hooks, load_draft, load_model, prefill
from sp.models.drafts.dflash_session import DraftSession
from sp.models.run.tree import LayerFeatures
N, NEW = 100, 60
draft_file, *targets = sys.argv[2:]
ids = np.arange(N)


def begin(kv, nodes, room=N + NEW):
    session, read = DraftSession.begin(draft, model, N + NEW), []
    def take(found):
        assert found.dtype == np.uint16
        session.remember(found, ids[sum(read):][: len(found)])
        read.append(len(found))
    cache = model.new_cache(room + nodes, kv, rotate=None)
    hooks = Hooks(after_layer=LayerFeatures(session.layers, take))
    logits = prefill(model, ids, ids, cache, chunk=64, hooks=hooks, rows=N)
    return session, cache, logits


def check():
    for kv in ("f16", "q4_0", "5bit", "q8_0"):
        for decoder in (DFlash(), DFlash(temperature=0.8), DFlash(3), DDTree(22), DDTree(63, 4, chain_seed=False)):
            nodes, passes = decoder.nodes(draft.block_size), []
            session, cache, logits = begin(kv, nodes)
            how = model, session, decoder, logits, N, cache
            found = list(speculate(*how, limit=NEW, on_pass=passes.append))
            assert len(found) == NEW and cache.tokens == N + NEW - 1 == N + sum(passes), (passes, cache.tokens)
    session, cache, logits = begin("f16", 16)
    dry_device.launches.clear()
    stream, launched = speculate(model, session, DFlash(), logits, N, cache, limit=NEW), []
    for token in stream:
        launched.append(sum(dry_device.launches.values()))
    rounds = [after - before for before, after in zip(launched, launched[1:]) if after > before]
    assert len(rounds) == 4 and rounds[0] > 20 and rounds[2] < 8, f"replays launch nothing but the choice: {rounds}"
    session, cache, logits = begin("f16", 0, N + 15)
    try:
        list(speculate(model, session, DFlash(), logits, N, cache, limit=NEW))
    except PromptError as error:
        assert "do not fit a cache" in str(error)
    else:
        raise AssertionError("a full cache went unnoticed")


said = {}
for target in targets:
    model = load_model(target, device="cuda")
    draft = load_draft(draft_file, model)
    try:
        check()
    except BaseException:
        said[target] = traceback.format_exc()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong with a target, by its name; one process walks all of them."""
    folder = tmp_path_factory.mktemp("dry")
    targets = [write_synthetic(folder / f"{arch}.gguf", arch, "q4_k_m") for arch in ARCHS]
    draft = write_synthetic_draft(folder / "d.gguf", "dflash-tiny-qwen35", "q8_0")
    found = json.loads(walked(WALK, str(draft), *map(str, targets)))
    return {Path(target).stem: said for target, said in found.items()}


@pytest.mark.parametrize("arch", ARCHS)
def test_every_launch_fits(arch: str, faults: dict[str, str]) -> None:
    assert arch not in faults, faults[arch]
