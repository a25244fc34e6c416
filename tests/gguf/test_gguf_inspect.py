"""`inspect_file` says what a file holds and what stands in the way of running it."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_gguf import build, string, tensor, u32
from rich.console import Console

from sp.errors import GGUFError
from sp.gguf import GGUFFile, GGUFWriter, Tokenizer
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata
from sp.planning.inspect import inspect_file
from sp.planning.tables import render
from sp.quant import F32, Q8_0

TEMPLATE = "{% for m in messages %}\n<{{ m.role }}>{{ m.content }}\n{% endfor %}"
with GGUFFile.open(Path(__file__).with_name("tiny-bpe.gguf")) as _file:
    VOCABULARY = dict(_file.metadata)
HIDDEN, FFN, VOCAB = 64, 96, 600
KEYS: dict[str, Any] = {
    **VOCABULARY,
    "general.name": "tiny",
    "general.file_type": 7,
    "tokenizer.chat_template": TEMPLATE,
    "qwen3.block_count": 2,
    "qwen3.context_length": 4096,
    "qwen3.embedding_length": HIDDEN,
    "qwen3.attention.head_count": 4,
    "qwen3.attention.head_count_kv": np.array([2, 2], np.int32),
    "qwen3.attention.key_length": 32,
    "qwen3.attention.value_length": 32,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3.feed_forward_length": 96,
    "qwen3.rope.freq_base": 1e6,
}
RECURRENT = {"conv_kernel": 4, "state_size": 32, "group_count": 1, "time_step_rank": 1, "inner_size": 32}
ATTENTION = {"attn_q": (128, HIDDEN), "attn_k": (64, HIDDEN), "attn_v": (64, HIDDEN), "attn_output": (HIDDEN, 128)}
FEED_FORWARD = {"ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN)}
NORMS = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q_norm": (32,), "attn_k_norm": (32,)}
DELTA = {
    **{"attn_qkv": (96, HIDDEN), "attn_gate": (32, HIDDEN), "ssm_conv1d": (96, 4), "ssm_alpha": (1, HIDDEN)},
    **{"ssm_beta": (1, HIDDEN), "ssm_norm": (32,), "ssm_out": (HIDDEN, 32)},
}


def qwen3_tensors() -> dict[str, tuple[int, ...]]:
    block = {**ATTENTION, **FEED_FORWARD, **NORMS}
    blocks = {f"blk.{i}.{name}.weight": shape for i in (0, 1) for name, shape in block.items()}
    return {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,), **blocks}


def qwen35_tensors(blocks: int) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i in range(blocks):
        norms = {"attn_norm": (HIDDEN,), "post_attention_norm": (HIDDEN,)}
        heads = {"attn_q_norm": (32,), "attn_k_norm": (32,)}
        attends = i % 4 == 3 or i >= 8
        gated = {**ATTENTION, "attn_q": (256, HIDDEN)}
        mixer = {**gated, **heads} if attends else DELTA
        tensors |= {f"blk.{i}.{name}.weight": shape for name, shape in {**norms, **FEED_FORWARD, **mixer}.items()}
        if not attends:
            tensors |= {f"blk.{i}.ssm_dt.bias": (1,), f"blk.{i}.ssm_a": (1,)}
    return tensors


def write(path: Path, keys: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> Path:
    writer = GGUFWriter(path, keys)
    for name, shape in tensors.items():
        fmt = Q8_0 if len(shape) == 2 and shape[1] % 32 == 0 else F32
        writer.add(name, shape, fmt, np.zeros(fmt.nbytes(shape), np.uint8))
    return writer.write()


def without(keys: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if key not in names}


def test_a_whole_model(tmp_path: Path) -> None:
    tensors = qwen3_tensors()
    path = write(tmp_path / "m.gguf", KEYS, tensors)
    info = inspect_file(path, sha256=True)
    assert json.loads(json.dumps(info)) == info
    elements = sum(int(np.prod(shape)) for shape in tensors.values())
    small = sum(int(np.prod(shape)) for shape in tensors.values() if len(shape) == 1)
    expected = {
        "path": str(path),
        "bytes": path.stat().st_size,
        "version": 3,
        "shards": 1,
        "sha256": [hashlib.sha256(path.read_bytes()).hexdigest()],
        "architecture": "qwen3",
        "name": "tiny",
        "file_type": "MOSTLY_Q8_0",
        "parameters": elements,
        "layers": 2,
        "hidden": HIDDEN,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 32,
        "context": 4096,
        "tensors": len(tensors),
        "warnings": [],
    }
    assert {key: info[key] for key in expected} == expected
    assert info["tensors_by_type"] == [
        {"type": "Q8_0", "count": 15, "bytes": (elements - small) // 32 * 34, "supported": True},
        {"type": "F32", "count": 9, "bytes": 4 * small, "supported": True},
    ]
    assert info["tokenizer"] == {
        "model": "gpt2",
        "pre": "qwen2",
        "vocab": 600,
        "merges": len(VOCABULARY["tokenizer.ggml.merges"]),
        "specials": 3,
        "eos": VOCABULARY["tokenizer.ggml.eos_token_id"],
        "add_bos": False,
        "sha256": Tokenizer.from_metadata(VOCABULARY).sha256,
    }
    assert info["chat_template"] == {
        "present": True,
        "sha256": hashlib.sha256(TEMPLATE.encode()).hexdigest(),
        "chars": len(TEMPLATE),
        "first_line": "{% for m in messages %}",
    }


@pytest.mark.parametrize(
    ("family", "keys", "eos", "add_bos"),
    [
        ("llama-bpe", {}, 2009, True),
        ("llama-bpe", {"add_bos_token": None}, 2009, True),  # as its pre-tokenizer says
        ("llama-bpe", {"add_bos_token": False}, 2009, False),
        ("llama", {"add_bos_token": None, "eos_token_id": None}, 2, True),  # of SentencePiece where it names none
        ("qwen2", {"add_bos_token": None}, 2002, False),
    ],
)
def test_tokens_around_a_prompt_are_listed_as_they_are_encoded(
    family: str, keys: dict[str, Any], eos: int, add_bos: bool, tmp_path: Path
) -> None:
    named = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    plain = {key: value for key, value in KEYS.items() if not key.startswith("tokenizer.")}
    metadata = {**plain, **tokenizer_metadata(family, 2000, 2048), **named}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    told = inspect_file(write(tmp_path / "m.gguf", metadata, {}))["tokenizer"]
    encoded = Tokenizer.from_metadata(metadata).encode("hi", framed=True).ids
    bare = Tokenizer.from_metadata(metadata).encode("hi").ids
    assert (told["eos"], told["add_bos"]) == (eos, add_bos)
    assert len(encoded) - len(bare) == add_bos


@pytest.mark.parametrize(
    ("keys", "scaling", "line"),
    [
        ({}, {"scaling": None, "magnitude": 1.0}, "none"),
        ({"factor": 2.0}, {"scaling": "linear", "factor": 2.0, "magnitude": 1.0}, "linear 2"),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32768},
            {"scaling": "yarn", "factor": 4.0, "original_context": 32768},
            "yarn 4 of 32768 positions, attention factor 1.1386",
        ),
    ],
)
def test_scaling_of_rope_is_listed(keys: dict[str, Any], scaling: dict[str, Any], line: str, tmp_path: Path) -> None:
    scaled = {f"qwen3.rope.scaling.{name}": value for name, value in keys.items()}
    info = inspect_file(write(tmp_path / "m.gguf", KEYS | scaled, qwen3_tensors()))
    assert info["warnings"] == []
    assert scaling.items() <= info["family"]["rope"].items()
    assert f"rope scaling  {line}\n" in re.sub(r" +\n", "\n", shown(info))


def test_hash_only_on_request(tmp_path: Path) -> None:
    assert inspect_file(write(tmp_path / "m.gguf", KEYS, {}))["sha256"] is None


def test_a_whole_hybrid_model_with_a_prediction_block(tmp_path: Path) -> None:
    keys = {key.replace("qwen3.", "qwen35."): value for key, value in KEYS.items()}
    keys |= {"general.architecture": "qwen35", "qwen35.block_count": 9, "qwen35.full_attention_interval": 4}
    keys |= {"qwen35.attention.head_count_kv": 2} | {f"qwen35.ssm.{name}": size for name, size in RECURRENT.items()}
    whole = qwen35_tensors(9)
    info = inspect_file(write(tmp_path / "m.gguf", {**keys, "qwen35.nextn_predict_layers": 1}, whole))
    assert info["warnings"] == ["1 multi-token-prediction block(s) from blk.8 on will be skipped"]
    info = inspect_file(write(tmp_path / "m.gguf", keys, qwen35_tensors(8)))
    assert info["warnings"][0].startswith("14 expected tensors are missing: blk.8.attn_norm.weight, ")
    flags = {"qwen35.attention.recurrent_layers": [True] * 8 + [False], "qwen35.block_count": 9}
    info = inspect_file(write(tmp_path / "m.gguf", {**keys, **flags}, whole))
    assert "blk.3.attn_qkv.weight" in info["warnings"][0]  # the flags overrule the interval


def test_fused_qkv_is_not_missing(tmp_path: Path) -> None:
    tensors = qwen3_tensors()
    for part in "qkv":
        del tensors[f"blk.1.attn_{part}.weight"]
    tensors["blk.1.attn_qkv.weight"] = (256, HIDDEN)
    assert inspect_file(write(tmp_path / "m.gguf", KEYS, tensors))["warnings"] == []


@pytest.mark.parametrize(
    ("keys", "dropped", "warning"),
    [
        (
            KEYS,
            ("blk.1.ffn_up.weight", "output_norm.weight"),
            "2 expected tensors are missing: output_norm.weight, blk.1",
        ),
        (without(KEYS, "qwen3.context_length"), (), "'qwen3.context_length' is absent"),
        (without(KEYS, "qwen3.rope.freq_base"), (), "key qwen3.rope.freq_base is missing"),
        ({**KEYS, "qwen3.attention.head_count_kv": 3}, (), "is 3, which does not divide 4 heads"),
        (without(KEYS, "qwen3.block_count"), (), "'qwen3.block_count' is absent"),
        ({**KEYS, "qwen3.block_count": "2"}, (), "'qwen3.block_count' is absent"),
        (without(KEYS, "tokenizer.chat_template"), (), "no chat template"),
        ({**KEYS, "tokenizer.chat_template": 5}, (), "'tokenizer.chat_template' is not a string"),
        ({**KEYS, "tokenizer.chat_template": "{% include 'x' %}"}, (), "may not use Include"),
        ({**KEYS, "tokenizer.chat_template": "{{ 1 | nosuch }}"}, (), "No filter named 'nosuch'"),
        ({**KEYS, "tokenizer.chat_template": "{{ 'x' * 9**9 }}"}, (), "chat template fails"),
        (without(KEYS, "tokenizer.ggml.model"), (), "no usable tokenizer: key 'tokenizer.ggml.model' is missing"),
        ({**KEYS, "tokenizer.ggml.pre": "kimi-k2"}, (), "no usable tokenizer: pre-tokenizer 'kimi-k2'"),
        (without(KEYS, "tokenizer.ggml.eos_token_id"), (), "no end-of-sequence token id"),
        ({**KEYS, "general.architecture": "gemma5"}, (), "architecture 'gemma5' is not supported; sp runs "),
        ({**KEYS, "qwen3.logit_scale": 0.5}, (), "key qwen3.logit_scale is 0.5, which sp does not support"),
        ({**KEYS, "general.architecture": "dflash"}, (), "pass it with --speculator"),
        (without(KEYS, "general.architecture"), (), "architecture None is not supported"),
    ],
)
def test_warnings(tmp_path: Path, keys: dict[str, Any], dropped: tuple[str, ...], warning: str) -> None:
    tensors = {name: shape for name, shape in qwen3_tensors().items() if name not in dropped}
    info = inspect_file(write(tmp_path / "m.gguf", keys, tensors))
    assert len(info["warnings"]) == 1, info["warnings"]
    assert warning in info["warnings"][0]


def test_a_drafter_needs_no_tokenizer(tmp_path: Path) -> None:
    keys = {"general.architecture": "dflash", "dflash.block_count": 3}
    [warning] = inspect_file(write(tmp_path / "m.gguf", keys, {"fc.weight": (HIDDEN, 2 * HIDDEN)}))["warnings"]
    assert "pass it with --speculator" in warning


def test_vocabulary_of_another_size(tmp_path: Path) -> None:
    info = inspect_file(write(tmp_path / "m.gguf", KEYS, {**qwen3_tensors(), "token_embd.weight": (640, HIDDEN)}))
    assert info["warnings"] == ["vocabulary of 600 tokens but 640 embedding rows"]


def test_types_sp_cannot_decode(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([string("general.architecture", "qwen3")], [tensor("a.weight", [256], 41)], bytes(96)))
    info = inspect_file(path)
    assert info["tensors_by_type"] == [{"type": "Q1_0", "count": 1, "bytes": 36, "supported": False}]
    assert info["warnings"][0] == "1 tensor(s) of type Q1_0, which sp cannot decode, e.g. a.weight"


def test_vocabulary_only(tmp_path: Path) -> None:
    info = inspect_file(write(tmp_path / "m.gguf", KEYS, {}))
    assert info["warnings"] == ["no tensors: a vocabulary only, or metadata only"]
    assert info["parameters"] == 0
    assert info["tensors_by_type"] == []


def test_per_layer_counts(tmp_path: Path) -> None:
    keys = {**KEYS, "qwen3.attention.head_count_kv": [0, 2], "qwen3.attention.head_count": np.array([], np.int32)}
    info = inspect_file(write(tmp_path / "m.gguf", keys, {}))
    assert info["kv_heads"] == [0, 2]
    assert info["heads"] is None


def test_a_file_that_is_no_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(GGUFError):
        inspect_file(tmp_path)


def shown(info: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=io.StringIO(), force_terminal=True)
    console.print(render(info))
    return console.export_text()


def test_render(tmp_path: Path) -> None:
    text = shown(inspect_file(write(tmp_path / "m.gguf", without(KEYS, "tokenizer.chat_template"), qwen3_tensors())))
    for part in (
        "qwen3 · tiny · MOSTLY_Q8_0",
        "layers 2 · hidden 64",
        "KiB",
        "Q8_0",
        "yes",
        "warning: no chat template",
    ):
        assert part in text
    assert "100.0%" not in text  # two types share the bytes


def test_a_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    name = "[bold red]x\x1b[2J\x07\nnew line " + "y" * 5000
    path.write_bytes(build([string("general.architecture", "qwen3"), string("general.name", name), u32("a", 1)]))
    info = inspect_file(path)
    assert info["name"].isprintable()
    assert len(info["name"]) <= 200
    assert "[bold red]x\ufffd[2J" in shown(info)
