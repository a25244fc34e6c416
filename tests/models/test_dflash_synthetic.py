"""Synthetic drafts: the published sizes, files that load, and the device path without a device."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dry_walk import walked
from tiny_drafts import as_published

from sp import cli
from sp.errors import ConfigError, ModelError
from sp.models.drafts.dflash import load_draft
from sp.models.drafts.dflash_session import DraftSession
from sp.models.synthetic.dflash_synthetic import (
    find_draft_shape,
    list_draft_shapes,
    synthetic_draft,
    write_synthetic_draft,
)
from sp.models.synthetic.shapes import find_shape
from sp.session.loaded import synthetic

TINY = "dflash-tiny-qwen35"


@pytest.fixture(scope="module")
def target():
    return synthetic("tiny-qwen35", device="cpu").model


@pytest.mark.parametrize("name", list_draft_shapes())
def test_shapes_fit_the_model_they_are_named_for(name) -> None:
    shape, target = find_draft_shape(name), find_shape(name.removeprefix("dflash-"))
    assert shape.hidden == target.config.hidden
    assert max(shape.target_layers) < target.config.layers
    assert target.text_tokens <= shape.mask_id < target.config.vocab


def test_the_published_draft_has_its_published_size() -> None:
    shape = find_draft_shape("dflash-qwen3.6-27b")
    values = [tensor.size for tensor in shape.tensors()]
    assert round(sum(values) / 1e9, 2) == 1.73
    assert shape.target_layers == tuple(1 + 15 * i for i in range(5))


@pytest.mark.parametrize("file_type", ["bf16", "q8_0", "q4_k_m"])
def test_sp_synth_writes_a_draft_that_loads(target, file_type, tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "draft.gguf"
    monkeypatch.setattr("sys.argv", ["sp", "synth", "--shape", TINY, "--type", file_type, "-o", str(path), "--json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert json.loads(capsys.readouterr().out)["shape"] == TINY
    draft, made = load_draft(path, target), synthetic_draft(TINY, file_type, target)
    assert draft.config == made.config
    assert (draft.layers, draft.block_size, draft.config.windows) == ((1, 3), 16, (100, 100, None))
    np.testing.assert_array_equal(draft.fuse.dense(), made.fuse.dense())
    session = DraftSession.begin(draft, target, 40)
    features = np.random.default_rng(0).standard_normal((40, draft.fuse.shape[1])).astype(np.float32)
    session.remember(features, np.arange(40))
    guessed = session.guess(7, 40, 15)
    assert guessed.shape == (15, target.config.vocab)
    assert 0.3 < guessed.std() < 3


def test_other_shapes_and_targets_are_refused(target) -> None:
    with pytest.raises(ConfigError, match="did you mean 'dflash-tiny-qwen35'"):
        synthetic_draft("dflash-tiny-qwen3", "bf16", target)
    with pytest.raises(ModelError, match="embedding_length is 5120, but the target's hidden size is 256"):
        synthetic_draft("dflash-qwen3.6-27b", "bf16", target)


WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from sp.kernels import forced_path
from sp.models.drafts.dflash import load_draft
from sp.models.drafts.dflash_session import DraftSession
from sp.models.synthetic.dflash_synthetic import synthetic_draft
from sp.session.loaded import synthetic
from sp.session.loaded import synthetic
target = synthetic("tiny-qwen35", device="cuda").model
empty = dry_device.empty
drafts = [synthetic_draft("dflash-tiny-qwen35", "q4_k_m", target), *(load_draft(path, target) for path in sys.argv[2:])]
for draft in drafts:
    assert draft.device == "cuda" and draft.nbytes > 1e6
    for path in ("sm_90a", "portable"):
        with forced_path(path):
            session, width = DraftSession.begin(draft, target, 360), draft.fuse.shape[1]
            for n in (300, 16, 1):
                session.remember(empty((n, width), np.uint16), np.arange(n))
            dry_device.launches.clear()
            for n in (12, 9, 0):
                guessed = session.guess(7, 400, n + 3)
                assert (guessed.shape, guessed.dtype) == ((n + 3, 2048), np.float32), (guessed.shape, guessed.dtype)
                session.remember(empty((n, width), np.uint16), np.arange(n))
            session.end()
            assert session._cache.tokens == 338, session._cache.tokens
            assert dry_device.launches["advance_counts"] == 3 * 4
"""


def test_every_launch_of_a_draft_fits(tmp_path) -> None:
    path = write_synthetic_draft(tmp_path / "draft.gguf", TINY, "f16")
    walked(WALK, str(path), str(as_published(tmp_path, path)))


def test_a_checkpoint_is_the_same_draft_as_its_gguf(target, tmp_path) -> None:
    path = write_synthetic_draft(tmp_path / "draft.gguf", TINY, "f16")
    drafts = [load_draft(one, target) for one in (path, as_published(tmp_path, path))]
    assert drafts[0].config == drafts[1].config
    features = np.random.default_rng(1).standard_normal((150, drafts[0].fuse.shape[1])).astype(np.float32)
    found = []
    for draft in drafts:
        session = DraftSession.begin(draft, target, 150)
        session.remember(features, np.arange(150))
        found.append(session.guess(7, 150, 15))
    np.testing.assert_array_equal(*found)
