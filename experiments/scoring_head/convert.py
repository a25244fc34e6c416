"""From what `train.py` wrote to the file that ships: python convert.py HEAD.npz layers.json DRAFTER.gguf FILE"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from sp.scoring.trained.late_interaction import ScoringHead


def main() -> None:
    weights, layers, drafter, out = map(Path, sys.argv[1:])
    asking, looked, rank = (json.loads(layers.read_text())[name] for name in ("asking", "looked", "rank"))
    z = np.load(weights)
    query, gate = (np.split(z[name].astype(np.float32), len(asking)) for name in ("query", "gate"))
    key = dict(zip(looked, np.split(z["key"].astype(np.float32), len(looked)), strict=True))
    asked = [int(name[1:]) for name in asking]
    seen = sorted({int(name[1:]) for name in looked})
    head = ScoringHead(
        hashlib.sha256(drafter.read_bytes()).hexdigest(),
        dict(zip(asked, query, strict=True)),
        {layer: np.concatenate([key[f"k{layer}"], key[f"v{layer}"]]) for layer in seen},
        dict(zip(asked, gate, strict=True)),
    )
    head.save(out, {"made": json.dumps({"recipe": "experiments/scoring_head", "rank": rank})})
    print(out, out.stat().st_size, "bytes, depth", head.depth)


if __name__ == "__main__":
    main()
