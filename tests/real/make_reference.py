"""Record what SmolLM2 says in float64: `python make_reference.py smollm2-135m.gguf` writes reference.json.

Needs PyTorch, transformers, tokenizers and gguf. The weights are unpacked by gguf's own decoder and run by
LlamaForCausalLM of transformers in float64; tokens come from a tokenizer that is put together as the published one is.
Nothing of `sp` has a part in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
TOP, SPREAD, ANSWER = 16, 97, 12
"""Largest logits of a position, a step through the vocabulary for others, and tokens of the greedy answer."""
CONTROL, END = 3, 2
"""Type of special tokens, and the one that ends an answer."""
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def field(reader: GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def read_model(reader: GGUFReader) -> LlamaForCausalLM:
    """The model of the file in float64."""
    heads, groups = (int(field(reader, f"llama.attention.head_count{end}")) for end in ("", "_kv"))
    config = LlamaConfig(
        vocab_size=int(field(reader, "llama.vocab_size")),
        hidden_size=int(field(reader, "llama.embedding_length")),
        intermediate_size=int(field(reader, "llama.feed_forward_length")),
        num_hidden_layers=int(field(reader, "llama.block_count")),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=int(field(reader, "llama.context_length")),
        rms_norm_eps=float(field(reader, "llama.attention.layer_norm_rms_epsilon")),
        rope_parameters={"rope_type": "default", "rope_theta": float(field(reader, "llama.rope.freq_base"))},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model, weights = LlamaForCausalLM(config).double().eval(), {}
    for tensor in reader.tensors:
        data = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        block, _, name = tensor.name.removesuffix(".weight").rpartition(".")
        if name in ("attn_q", "attn_k"):  # llama.cpp pairs neighbours in RoPE, transformers halves
            count = heads if name == "attn_q" else groups
            data = data.reshape(count, data.shape[0] // count // 2, 2, -1).swapaxes(1, 2).reshape(data.shape)
        if block:
            place = f"model.layers.{block.removeprefix('blk.')}.{NAMES[name]}.weight"
        else:
            place = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[name]
        weights[place] = torch.from_numpy(np.ascontiguousarray(data))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model


def read_tokenizer(reader: GGUFReader) -> Tokenizer:
    """The tokenizer of the file: single digits, then GPT-2's words, then bytes and merges."""
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    tokenizer.decoder = decoders.ByteLevel()
    types = field(reader, "tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def main(path: str) -> None:
    reader = GGUFReader(path)
    model, tokenizer = read_model(reader), read_tokenizer(reader)
    texts = json.loads((HERE / "texts.json").read_text("utf-8"))
    passage = tokenizer.encode(texts["passage"]).ids
    with torch.no_grad():
        logits = model(torch.tensor([passage])).logits[0].numpy()
        chat = tokenizer.encode(texts["chat"]).ids
        answer: list[int] = []
        while len(answer) < ANSWER and answer[-1:] != [END]:
            answer.append(int(model(torch.tensor([chat + answer])).logits[0, -1].argmax()))
    rows = []
    for position in sorted({0, 1, 2, 7, 31, *range(63, len(passage), 32), len(passage) - 1}):
        row = logits[position]
        ids = sorted({*np.argsort(-row, kind="stable")[:TOP].tolist(), *range(position % SPREAD, len(row), 997)})
        total = float(row.max() + np.log(np.exp(row - row.max()).sum()))
        rows.append(
            {"position": position, "log_sum": total, "ids": ids, "logits": [float(f"{row[i]:.9g}") for i in ids]}
        )
    found = {
        "passage": passage,
        "rows": rows,
        "chat": chat,
        "answer": answer,
        "answer_text": tokenizer.decode(answer, skip_special_tokens=True),
        "texts": [tokenizer.encode(text).ids for text in texts["texts"]],
    }
    (HERE / "reference.json").write_text(json.dumps(found, separators=(",", ":")) + "\n", "utf-8")
    print(f"{len(passage)} tokens, {len(rows)} positions; {found['answer_text']!r}")


if __name__ == "__main__":
    main(sys.argv[1])
