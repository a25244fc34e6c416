"""Record what Gemma 3 270M says in float64: `python make_gemma3.py gemma-3-270m.gguf` writes gemma3.json anew.

Needs PyTorch, transformers and gguf. The weights are unpacked by gguf's own decoder and run by Gemma3ForCausalLM of
transformers in float64, with masks whose windows are of positions; the tokens are those of the file that is there.
Nothing of `sp` has a part in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGUFReader, dequantize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

KEPT = Path(__file__).with_name("gemma3.json")
BASE, LOCAL_BASE, EVERY = 1e6, 1e4, 6
NAMES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_model(reader: GGUFReader) -> Gemma3ForCausalLM:
    """The model of the file in float64."""

    def key(name: str) -> Any:
        return reader.fields[f"gemma3.{name}"].contents()

    layers = int(key("block_count"))
    kinds = ["full_attention" if (layer + 1) % EVERY == 0 else "sliding_attention" for layer in range(layers)]
    bases = {"full_attention": float(key("rope.freq_base")), "sliding_attention": LOCAL_BASE}
    tensors = {tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float64) for tensor in reader.tensors}
    config = Gemma3TextConfig(
        vocab_size=len(tensors["token_embd.weight"]),
        hidden_size=int(key("embedding_length")),
        intermediate_size=int(key("feed_forward_length")),
        num_hidden_layers=layers,
        num_attention_heads=int(key("attention.head_count")),
        num_key_value_heads=int(key("attention.head_count_kv")),
        head_dim=int(key("attention.key_length")),
        query_pre_attn_scalar=int(key("attention.key_length")),
        rms_norm_eps=float(key("attention.layer_norm_rms_epsilon")),
        sliding_window=int(key("attention.sliding_window")),
        layer_types=kinds,
        rope_parameters={kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        attn_implementation="eager",
    )
    model, weights = Gemma3ForCausalLM(config).double().eval(), {}
    for full, data in tensors.items():
        block, _, name = full.removesuffix(".weight").rpartition(".")
        if block:
            place = f"model.layers.{block.removeprefix('blk.')}.{NAMES[name]}.weight"
        else:
            place = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[name]
        # Norms multiply by one more than what transformers holds; files hold the whole.
        weights[place] = torch.from_numpy(data - 1 if name.endswith("norm") else data)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model


def last_logits(model: Gemma3ForCausalLM, ids: list[int], positions: np.ndarray) -> np.ndarray:
    """Logits of the last token, windows by positions: transformers itself counts tokens."""
    back = torch.tensor(positions[:, None] - positions)
    hidden = {"full_attention": back < 0, "sliding_attention": (back < 0) | (back >= model.config.sliding_window)}
    masks = {kind: torch.where(where, -torch.inf, 0.0).double()[None, None] for kind, where in hidden.items()}
    with torch.no_grad():
        out = model(torch.tensor([ids]), attention_mask=masks, position_ids=torch.tensor(positions)[None])
    found: np.ndarray = out.logits[0, -1].numpy()
    return found


def main(path: str) -> None:
    kept = json.loads(KEPT.read_text("utf-8"))
    model, n = read_model(GGUFReader(path)), len(kept["ids"])
    for how, positions in {
        "plain": np.arange(n),
        "gapped": np.cumsum(1 + 40 * (np.arange(n) % 97 == 5)),
    }.items():
        logits, at = last_logits(model, kept["ids"], positions), kept[how]["at"]
        change = np.abs(logits[at] - np.array(kept[how]["logits"])).max()
        print(f"{how}: best {logits.argmax()}, largest change {change:.3g}")
        kept[how] = {"at": at, "logits": [float(f"{logits[i]:.11g}") for i in at], "best": int(logits.argmax())}
    kept["made"] = (
        f"transformers {transformers.__version__}, torch.float64, weights as gguf decodes them: Gemma3ForCausalLM, "
        "eager attention, windows by positions"
    )
    KEPT.write_text(json.dumps(kept, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
