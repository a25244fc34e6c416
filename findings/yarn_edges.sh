#!/usr/bin/env bash
# YaRN of gpt-oss: transformers uses fractional edges of the ramp, llama.cpp rounds them outwards.
#
# Versions: transformers 5.24.0 with torch 2.13.0 (CPU), gguf 0.19.0; llama.cpp v0.5.0 as prebuilt in
#   @node-llama-cpp/linux-x64 3.22.1. No weights: the default configuration of gpt-oss in transformers is that of the
#   models.
# Behaviour: YaRN keeps fast pairs, stretches slow ones, and blends those between two edges. The configuration has
#   `truncate: false`, which means fractional edges; transformers obeys it. `ggml_rope_yarn_corr_dims`, which every RoPE
#   of llama.cpp on the CPU calls, always uses the floor of one edge and the ceiling of the other, and GGUF has no key
#   to change that.
# Output seen: edges 8.09 and 17.40 compared with 8 and 18, of 32 pairs. Nine pairs rotate at other rates, up to 76 %
#   faster (the last of the ramp), and after 131,072 tokens they are up to 4.6 whole turns apart. With `truncate: true`
#   transformers gives llama.cpp's values.
# Why it matters: the two usual references of an engine disagree for this family, and a difference in logits that grows
#   with the prompt looks like a bug of one's own. Elsewhere rounding is the default, and both agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 gguf==0.19.0
npm install --silent --ignore-scripts --prefix "$folder" @node-llama-cpp/linux-x64@3.22.1 >"$folder/npm"
export HF_HUB_OFFLINE=1 LIBRARY="$folder/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64/libggml-base.so"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import ctypes
import math
import os

import torch
from gguf import Keys
from transformers import GptOssConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

TOKENS = 131072
config = GptOssConfig()
said = dict(config.rope_parameters)
base, factor, original = said["rope_theta"], said["factor"], said["original_max_position_embeddings"]
pairs = config.head_dim // 2
print("transformers' default:", said)


def of_transformers(truncate):
    """Radians a token of every pair."""
    config.rope_parameters = {**said, "truncate": truncate}
    return ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")[0].double()


def of_edges(low, high):
    """The same by the definition: a line from kept to stretched between the edges."""
    kept = base ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    ramp = ((torch.arange(pairs) - low) / (high - low)).clamp(0, 1)
    return kept * (1 - ramp) + kept / factor * ramp


edges = (ctypes.c_float * 2)()
ctypes.CDLL(os.environ["LIBRARY"]).ggml_rope_yarn_corr_dims(
    2 * pairs, original, *(ctypes.c_float(value) for value in (base, said["beta_fast"], said["beta_slow"])), edges
)
exact = [
    pairs * math.log(original / (2 * math.pi * said[beta])) / math.log(base) for beta in ("beta_fast", "beta_slow")
]
asked, rounded = of_transformers(False), of_transformers(True)
apart = (of_edges(*edges) / asked - 1).numpy()
turns = ((of_edges(*edges) - asked).abs() * TOKENS / (2 * math.pi)).numpy()
keys = [name for name in vars(Keys.Rope) if "YARN" in name or "SCALING" in name]
print(f"edges of {pairs} pairs: {exact[0]:.2f}, {exact[1]:.2f} as they fall; {edges[0]:g}, {edges[1]:g} in llama.cpp")
print(f"{(abs(apart) > 1e-3).sum()} pairs differ, by {100 * apart.min():+.1f} to {100 * apart.max():+.1f} %")
print(f"at {TOKENS:,} tokens: {turns.max():.1f} turns apart at most")
print("keys of GGUF for scaling:", ", ".join(keys))

assert said["truncate"] is False, "the configuration now asks for rounded edges"
assert torch.allclose(asked, of_edges(*exact), rtol=1e-5), "transformers no longer leaves the edges as they fall"
assert torch.allclose(rounded, of_edges(*edges), rtol=1e-5), "transformers with rounding is no longer llama.cpp"
assert list(edges) == [8, 18], "llama.cpp no longer rounds the edges"
assert turns.max() > 4 and (abs(apart) > 1e-3).sum() == 9, "the distances changed"
assert not any("TRUNC" in name for name in vars(Keys.Rope)), "GGUF now has a key for it"
print("as described")
PYTHON
