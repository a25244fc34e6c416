"""The DFlash draft: every kind of file, and its forward pass against plain loops in float64."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from tiny_drafts import BASE, BLOCK, HEAD_DIM, HEADS, KINDS, KV_HEADS, MASK, SLIDING, WINDOW, draft_tensors, write_draft
from tiny_models import VOCAB, write_tiny

from sp.errors import ConfigError, GGUFError, ModelError
from sp.gguf import GGUFFile
from sp.models import Hooks, load_model, prefill
from sp.models.cache.cache import Cache
from sp.models.drafts.dflash import load_draft
from sp.models.drafts.dflash_config import draft_config, gguf_keys
from sp.models.drafts.dflash_session import DraftSession
from sp.models.file.safetensors_file import SafetensorsFile
from sp.models.run.tree import LayerFeatures

TAKEN = (1, 4)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """The hybrid, six layers."""
    return load_model(write_tiny(tmp_path_factory.mktemp("m") / "m.gguf", "qwen35"))


def reference(
    target,
    tensors,
    features,
    where,
    token: int,
    position: int,
    sliding: bool,
    *,
    turned: int = HEAD_DIM,
    embedding_scale: float = 1.0,
    logit_scale: float = 1.0,
) -> np.ndarray:
    """Logits of a block as the paper and the published code have it, value by value in float64.

    The first `turned` values of a head are rotated; the scales are those of llama.cpp, src/models/dflash.cpp.
    """
    w = {name.removesuffix(".weight"): value.astype(np.float64) for name, value in tensors.items()}

    def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / math.sqrt((x @ x) / len(x) + 1e-6) * weight

    def turn(x: np.ndarray, at: int) -> np.ndarray:
        half = turned // 2
        y = x.copy()
        for j in range(half):
            angle = at * BASE ** (-2 * j / turned)
            y[j] = x[j] * math.cos(angle) - x[j + half] * math.sin(angle)
            y[j + half] = x[j] * math.sin(angle) + x[j + half] * math.cos(angle)
        return y

    embed = embedding_scale * target.weights.embed.dense().astype(np.float64)
    fused = [rms(w["fc"] @ row, w["hidden_norm"]) for row in features.astype(np.float64)]
    x = [embed[token]] + [embed[MASK]] * (BLOCK - 1)
    places = [*where, *range(position, position + BLOCK)]
    for i, slides in enumerate(SLIDING):
        part = {name.removeprefix(f"blk.{i}."): value for name, value in w.items() if name.startswith(f"blk.{i}.")}
        normed = [rms(row, part["attn_norm"]) for row in x]
        keys, values = [], []
        for row, at in zip(fused + normed, places, strict=True):
            k, v = (part[name] @ row for name in ("attn_k", "attn_v"))
            keys.append([turn(rms(one, part["attn_k_norm"]), at) for one in k.reshape(KV_HEADS, HEAD_DIM)])
            values.append(v.reshape(KV_HEADS, HEAD_DIM))
        after = []
        for b in range(BLOCK):
            me, heads = len(fused) + b, []
            for h, one in enumerate((part["attn_q"] @ normed[b]).reshape(HEADS, HEAD_DIM)):
                q, mine = turn(rms(one, part["attn_q_norm"]), places[me]), h // (HEADS // KV_HEADS)
                seen = [j for j in range(len(keys)) if not (slides and sliding) or 0 <= me - j < WINDOW]
                score = np.array([q @ keys[j][mine] / math.sqrt(HEAD_DIM) for j in seen])
                weight = np.exp(score - score.max()) / np.exp(score - score.max()).sum()
                heads.append(sum(a * values[j][mine] for a, j in zip(weight, seen, strict=True)))
            row = x[b] + part["attn_output"] @ np.concatenate(heads)
            h = rms(row, part["ffn_norm"])
            gate = part["ffn_gate"] @ h
            after.append(row + part["ffn_down"] @ (gate / (1 + np.exp(-gate)) * (part["ffn_up"] @ h)))
        x = after
    head = target.weights.output.dense().astype(np.float64)
    return logit_scale * np.stack([head @ rms(row, w["output_norm"]) for row in x[1:]])


@pytest.mark.parametrize("sliding", [True, False])
def test_guesses_are_those_of_the_paper(target, tmp_path, sliding) -> None:
    draft = load_draft(write_draft(tmp_path, "dflash", target.config, TAKEN, sliding=sliding), target)
    rng = np.random.default_rng(4)
    n, where = 150, np.cumsum(rng.integers(1, 4, 150))  # more than a page; the window is shorter
    features = rng.standard_normal((n, 2 * target.config.hidden)).astype(np.float32)
    session = DraftSession.begin(draft, target, n, "f32")
    for start, stop in ((0, 60), (60, 61), (61, n)):
        session.remember(features[start:stop], where[start:stop])
    token, position = 17, int(where[-1]) + 1
    expected = reference(target, draft_tensors(target.config.hidden, 2), features, where, token, position, sliding)
    found = session.guess(token, position, BLOCK - 1)
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
    np.testing.assert_allclose(session.guess(token, position, 2), expected[:2], atol=2e-4 * np.abs(expected).max())


SCALED = [
    ("dflash", {"rope__dimension_count": 8}, {"turned": 8}),
    ("safetensors", {"rope_parameters": {"rope_theta": BASE, "partial_rotary_factor": 0.25}}, {"turned": 8}),
    ("dflash", {"embedding_scale": 6.5}, {"embedding_scale": 6.5}),
    ("dflash-draft", {"dflash__logit_scale": 0.125, "embedding_scale": 0.0}, {"logit_scale": 0.125}),
    ("safetensors", {"logit_scale": 3, "embedding_scale": 0.5}, {"logit_scale": 3.0, "embedding_scale": 0.5}),
]


@pytest.mark.parametrize(("kind", "keys", "told"), SCALED)
def test_keys_that_change_a_guess_are_honoured(target, tmp_path, kind, keys, told) -> None:
    rng, n = np.random.default_rng(14), 40
    features, where = rng.standard_normal((n, 2 * target.config.hidden)).astype(np.float32), 3 * np.arange(n)
    found = []
    for changes in ({}, keys):
        session = DraftSession.begin(load_draft(write_draft(tmp_path, kind, target.config, TAKEN, **changes), target),
                                     target, n, "f32")  # fmt: skip
        session.remember(features, where)
        found.append(session.guess(17, 3 * n, BLOCK - 1))
    tensors = draft_tensors(target.config.hidden, 2)
    expected = reference(target, tensors, features, where, 17, 3 * n, True, **told)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found[1], expected, atol=2e-4 * largest)
    assert np.abs(found[0] - expected).max() > 0.05 * largest  # without the key it is another draft


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_is_the_same_draft(target, tmp_path, kind) -> None:
    draft = load_draft(write_draft(tmp_path, kind, target.config, TAKEN), target)
    c = draft.config
    assert (c.block_size, c.mask_id, c.target_layers) == (BLOCK, MASK, TAKEN)
    assert c.windows == (WINDOW,) * 4 + (None,)
    assert c.causal == SLIDING
    tensors = draft_tensors(target.config.hidden, 2)
    np.testing.assert_array_equal(draft.fuse.dense(), tensors["fc.weight"])
    np.testing.assert_array_equal(draft.hidden_norm, tensors["hidden_norm.weight"])
    np.testing.assert_array_equal(draft.output_norm, tensors["output_norm.weight"])
    for i, block in enumerate(draft.blocks):
        np.testing.assert_array_equal(block.ffn_norm, tensors[f"blk.{i}.ffn_norm.weight"])
        np.testing.assert_array_equal(block.mixer.k.dense(), tensors[f"blk.{i}.attn_k.weight"])


def test_layers_spread_over_the_target_where_only_their_number_is_told(target, tmp_path) -> None:
    changes = {"dflash__target_layer_ids": None}
    path = write_draft(tmp_path, "qwen35-dflash-draft", target.config, TAKEN, **changes)
    assert load_draft(path, target).layers == (1, 5)  # 27B: 1, 16, 31, 46, 61 of 64


def test_causal_in_full_layers_where_the_file_says_so(target, tmp_path) -> None:
    draft = load_draft(write_draft(tmp_path, "safetensors", target.config, TAKEN, is_causal=True), target)
    assert draft.config.causal == (True,) * 5


def test_features_of_the_target_change_the_guess(target, tmp_path) -> None:
    draft = load_draft(write_draft(tmp_path, "dflash", target.config, TAKEN), target)
    found = []
    for seed in (1, 2):
        ids, session = np.random.default_rng(seed).integers(0, VOCAB, 30), DraftSession.begin(draft, target, 30)
        seen = LayerFeatures(draft.layers, lambda rows, s=session: s.remember(rows, np.arange(30)))
        prefill(target, ids, np.arange(30), target.new_cache(30), hooks=Hooks(after_layer=seen))
        found.append(session.guess(5, 30, BLOCK - 1))
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_bf16_checkpoints_are_read_as_they_are(tmp_path) -> None:
    values = np.array([[1.5, -2.0, 0.25]], np.float32)
    bits = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    header = json.dumps({"w": {"dtype": "BF16", "shape": [1, 3], "data_offsets": [0, 6]}}).encode()
    path = tmp_path / "b.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bits)
    np.testing.assert_array_equal(SafetensorsFile.open(path).weight("w").dense(), values)


def test_layers_that_slide_keep_only_what_they_see(target, tmp_path) -> None:
    draft = load_draft(write_draft(tmp_path, "dflash", target.config, TAKEN), target)
    n, sizes = 20_000, (9000, 3, 500, 8192, 6, 2000, 200, 99)  # pages are taken for the second time, and the third
    features = np.random.default_rng(8).standard_normal((n, 2 * target.config.hidden)).astype(np.float32)
    whole = Cache(draft.config.model, n + BLOCK, "f32")
    sessions = DraftSession.begin(draft, target, n, "f32"), DraftSession(draft, target, whole)
    found = []
    for session in sessions:
        for size, stop in zip(sizes, np.cumsum(sizes), strict=True):
            session.remember(features[stop - size : stop], np.arange(stop - size, stop))
            found.append(session.guess(9, int(stop), BLOCK - 1))
    np.testing.assert_array_equal(found[: len(sizes)], found[len(sizes) :])
    assert sum(sizes) == n
    assert DraftSession.begin(draft, target, n, "f32")._cache.nbytes < 0.65 * whole.nbytes


BAD = [
    ("dflash", {"words": VOCAB + 1}, "has 54 tokens, but the target's embedding has 53 rows"),
    ("dflash", {"rope__dimension_count": 7}, r"rope.dimension_count is 7, 7 values of a head; it must be even"),
    ("dflash", {"rope__dimension_count": 64}, "it must be even and at most 32"),
    ("safetensors", {"partial_rotary_factor": 0.01}, "partial_rotary_factor is 0.01, 0 values of a head"),
    ("dflash", {"logit_scale": -1.0}, "dflash.logit_scale is -1.0; it must be finite and greater than 0"),
    ("dflash", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30, which sp does not support"),
    ("safetensors", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30, which sp does not support"),
    ("dflash", {"attention__value_scale": 0.707}, "attention.value_scale is 0.707, which sp does not support; use"),
    ("safetensors", {"attention_value_scale": 0.707}, "attention_value_scale is 0.707, which sp does not"),
    ("safetensors", {"hidden_act": "gelu"}, "hidden_act is 'gelu', which sp does not support"),
    ("dflash", {"attention__sinks": True}, "attention.sinks is True, which sp does not support"),
    (
        "dflash",
        {"conv_kernel_size": 2},
        r"is a DFlash2 draft \(key conv_kernel_size\), and sp runs drafts of the first",
    ),
    ("safetensors", {"dflash_config": {"selector_rank": 64}}, r"is a DFlash2 draft \(key selector_rank\)"),
    ("dflash", {"extra": ("blk.0.attn_conv_base",)}, r"is a DFlash2 draft \(tensor blk.0.attn_conv_base\)"),
    ("dflash", {"extra": ("selector_hidden.weight",)}, r"is a DFlash2 draft \(tensor selector_hidden.weight\)"),
    ("dflash", {"extra": ("markov_w1.weight",)}, r"is a DSpark draft \(tensor markov_w1.weight\)"),
    ("dflash", {"extra": ("d2t",)}, r"is a DSpark draft \(tensor d2t\), .* use such a draft of this target, or omit"),
    ("dflash", {"extra": ("blk.0.conv.weight",)}, "1 tensors are not part of dflash, the first is blk.0.conv.weight"),
    ("dflash", {"embedding_length": 41}, "dflash.embedding_length is 41, but the target's hidden size is 40"),
    ("safetensors", {"hidden_size": 41}, "hidden_size is 41, but the target's hidden size is 40"),
    ("safetensors", {"vocab_size": 99}, "vocab_size is 99, but the target's embedding has 53 rows"),
    (
        "safetensors",
        {"dflash_config": {"mask_token_id": 53, "target_layer_ids": [1, 4]}},
        "mask_token_id is 53, outside",
    ),
    ("dflash-draft", {"dflash__target_layer_ids": [1, 6]}, "not 2 layers of a target with 6"),
    ("dflash", {"target_layers": np.array([2, 41], np.int32)}, r"target_layers is \[2, 41\], not 2 layers"),
    ("dflash", {"target_layers": [0, 3]}, "not 2 layers"),
    ("dflash", {"target_layers": [2, 2]}, "not 2 layers"),
    ("dflash", {"rope__freq_base": None}, "dflash.rope.freq_base is missing"),
    ("dflash", {"block_size": 1}, "dflash.block_size is 1; it must lie in 2"),
    ("qwen35-dflash-draft", {"dflash__mask_token_id": None}, "mask_token_id is missing"),
    ("dflash", {"attention__sliding_window_pattern": [True]}, "one flag for each of 5 layers"),
    ("safetensors", {"layer_types": ["chunked"] * 5}, "sp supports full_attention and sliding_attention"),
    ("safetensors", {"rope_scaling": {"rope_type": "yarn"}}, "key rope_scaling.factor is missing"),
    ("safetensors", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "key rope_type is 'llama3'; sp supports"),
    ("safetensors", {"rope_scaling": {"rope_type": "yarn", "mscale": 0.7}}, "key rope_scaling.mscale is 0.7; sp"),
    ("dflash", {"rope__scaling__type": np.array([1, 1], np.int32)}, r"key dflash.rope.scaling.type is \[1, 1\]"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), BAD)
def test_a_draft_for_another_target_is_refused_in_one_line(target, tmp_path, kind, changes, message) -> None:
    path = write_draft(tmp_path, kind, target.config, TAKEN, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_draft(path, target)
    assert "\n" not in str(caught.value)


def test_an_embedding_is_padded_by_a_few_rows_only(target, tmp_path) -> None:
    with GGUFFile.open(write_draft(tmp_path, "dflash", target.config, TAKEN, words=1517)) as file:
        assert draft_config(gguf_keys(file), replace(target.config, vocab=1520)).model.vocab == 1520
        with pytest.raises(ModelError, match="has 1517 tokens, but the target's embedding has 2560 rows"):
            draft_config(gguf_keys(file), replace(target.config, vocab=2560))


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("dflash", "blk.2.attn_k.weight", "tensor blk.2.attn_k.weight is missing"),
        ("safetensors", "blk.2.attn_k.weight", "tensor layers.2.self_attn.k_proj.weight is missing"),
        ("dflash-draft", "fc.weight", "fc.weight is missing"),
    ],
)
def test_missing_tensors_are_named_as_the_file_would(target, tmp_path, kind, name, shown) -> None:
    with pytest.raises(ModelError, match=shown):
        load_draft(write_draft(tmp_path, kind, target.config, TAKEN, drop=(name,)), target)


def test_draft_and_target_are_on_one_device(target, tmp_path) -> None:
    draft = load_draft(write_draft(tmp_path, "dflash", target.config, TAKEN), target)
    with pytest.raises(ConfigError, match="the target is on cpu and its draft on cuda; load both on the same device"):
        DraftSession.begin(replace(draft, device="cuda"), target, 10)


def test_other_files_are_refused(target, tmp_path) -> None:
    model = write_tiny(tmp_path / "m.gguf", "qwen3")
    with pytest.raises(ModelError, match="'qwen3' is no DFlash draft"):
        load_draft(model, target)
    with pytest.raises(GGUFError, match="no such file"):
        load_draft(tmp_path / "none.gguf", target)
    with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
        load_draft(tmp_path / "none.safetensors", target)
    path = write_draft(tmp_path, "safetensors", target.config, TAKEN)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelError, match="no sound safetensors file"):
        load_draft(path, target)
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        load_draft(path, target)
    path.mkdir()
    with pytest.raises(ModelError, match=path.name):
        load_draft(path, target)
    for text, message in (("[1]", "describes no DFlash draft"), ("{", "is not JSON"), ("[" * 100_000, "is not JSON")):
        path.with_name("config.json").write_text(text)
        with pytest.raises(ModelError, match=message):
            load_draft(path, target)
