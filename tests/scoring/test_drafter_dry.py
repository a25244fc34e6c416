"""The device path of the attention scorers without a device: every launch fits its declaration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sp.pipeline.load import embedded

SCORE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from sp.kernels import forced_path
from sp.models import load_model
from sp.scoring import SCORERS, ScoreRequest
N = 300
model, ids, mask = load_model(sys.argv[2], device="cuda"), np.arange(N), np.zeros(N, bool)
told = []
scorer, options = sys.argv[3], json.loads(sys.argv[4])
for path in ("sm_90a", "portable"):
    with forced_path(path):
        dry_device.launches.clear()
        request = ScoreRequest(model, ids, ids, mask, mask, by_head=True, progress=told.append)
        found = SCORERS.build(scorer, options).score(request)
        assert found.scores.shape == (N,) and found.by_head.shape[1:] == (model.config.heads, 10)
assert sum(told) == 2 * N * model.config.layers, told
print(json.dumps(dry_device.launches))
"""


@pytest.mark.parametrize("role", ["drafter", "target"])
@pytest.mark.parametrize("scorer", ["tail", "lookahead"])
@pytest.mark.parametrize(
    "options",
    [{"rotary": "none"}, {"attention": "flashprefill"}, {"attention": "flashprefill", "density": 0.2, "layers": [-1]}],
)
def test_every_launch_fits(role, scorer, options) -> None:
    here = str(Path(__file__).parents[1] / "models")
    command = [sys.executable, "-c", SCORE, here, str(embedded(role)), scorer, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    launches = json.loads(done.stdout)
    folds = {name: count for name, count in launches.items() if name.startswith("importance")}
    assert len(folds) == 4
    assert len(set(folds.values())) == 1
    assert ("unrotate" in launches) == (options.get("rotary") == "none")
    assert any(name.startswith("block_select") for name in launches) == ("attention" in options)
