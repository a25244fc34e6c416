"""Speculative decoding of a target that GPUs share, a whole draft on each: the answers are those of one GPU."""

from __future__ import annotations

import numpy as np
import pytest
from dry_walk import walked
from models.tiny_drafts import write_draft
from models.tiny_models import VOCAB, write_tiny

from sp.decode import DDTree, DFlash
from sp.decode.base import generate
from sp.decode.speculate import speculate
from sp.models import Hooks, Model, load_draft, load_model, prefill
from sp.models.drafts.dflash_session import DraftSession
from sp.models.run.tree import LayerFeatures
from sp.models.shards.load_shards import load_shards
from sp.models.synthetic.dflash_synthetic import write_synthetic_draft
from sp.models.synthetic.synthetic import write_synthetic
from sp.parallel.host import HostGroup

N, LIMIT = 70, 24
IDS, WHERE = np.random.default_rng(6).integers(0, VOCAB, N), np.arange(N) * 2
DECODERS = [DFlash(), DFlash(3, temperature=0.7), DDTree(9, 3)]


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_answers_are_those_of_one_gpu(arch, tmp_path) -> None:
    path = write_tiny(tmp_path / "target.gguf", arch, seed=2)
    whole, shards = load_model(path), load_shards(path, HostGroup(2))
    draft_file = write_draft(tmp_path, "dflash", whole.config, (0, 2), seed=5)

    def answers(model: Model) -> list[list[int]]:
        draft, found = load_draft(draft_file, model), []
        for decoder in DECODERS:
            session = DraftSession.begin(draft, model, N + LIMIT)
            cache = model.new_cache(N + LIMIT + decoder.nodes(session.block_size), "f32")
            remember = LayerFeatures(session.layers, lambda rows, session=session: session.remember(rows, WHERE))
            logits = prefill(model, IDS, WHERE, cache, hooks=Hooks(after_layer=remember), rows=N)
            found.append(list(speculate(model, session, decoder, logits, int(WHERE[-1]) + 1, cache, limit=LIMIT)))
        cache = model.new_cache(N + LIMIT, "f32")
        logits = prefill(model, IDS, WHERE, cache)
        return [*found, list(generate(model, logits, int(WHERE[-1]) + 1, cache, limit=LIMIT))]

    want, (first, second) = answers(whole), shards.run(answers)
    assert first == second == want
    assert want[0] == want[2] == want[3]


WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_nccl
dry_nccl.install(2)
import numpy as np
from sp.decode import DDTree, DFlash
from sp.decode.speculate import speculate
from sp.models import Hooks, load_draft, prefill
from sp.models.drafts.dflash_session import DraftSession
from sp.models.run.tree import LayerFeatures
from sp.models.shards.load_shards import load_shards
from sp.parallel.nccl import NcclGroup
N, NEW, ids = 100, 40, np.arange(100)
shards = load_shards(sys.argv[2], NcclGroup((0, 1)), device="cuda")
def answers(model):
    draft = load_draft(sys.argv[3], model)
    for decoder in (DFlash(), DFlash(temperature=0.8), DDTree(22)):
        session = DraftSession.begin(draft, model, N + NEW)
        cache, passes = model.new_cache(N + NEW + decoder.nodes(draft.block_size)), []
        remember = LayerFeatures(session.layers, lambda rows: session.remember(rows, ids))
        logits = prefill(model, ids, ids, cache, hooks=Hooks(after_layer=remember), rows=N)
        found = list(speculate(model, session, decoder, logits, N, cache, limit=NEW, on_pass=passes.append))
        assert len(found) == NEW and cache.tokens == N + NEW - 1 == N + sum(passes), (passes, cache.tokens)
    return found
one, other = shards.run(answers)
assert one == other
counts = [dict(count) for _, count in sorted(dry_nccl.launches.items())]
assert counts[0] == counts[1], counts
"""


def test_every_launch_fits_on_two_devices(tmp_path) -> None:
    target = write_synthetic(tmp_path / "target.gguf", "tiny-qwen35", "q8_0")
    draft = write_synthetic_draft(tmp_path / "draft.gguf", "dflash-tiny-qwen35", "q8_0")
    walked(WALK, str(target), str(draft))
