"""The device path of the attention scorers without a device: every launch fits its declaration."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dry_walk import walked

from sp.session.loaded import embedded

ROLES, SCORERS = ("drafter", "target"), ("tail", "lookahead")
OPTIONS: tuple[dict[str, Any], ...] = (
    {"rotary": "none"},
    {"sparse": "alpha:0.1"},
    {"sparse": "density:0.2", "layers": [-1]},
)
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
ids, mask, found = np.arange(N), np.zeros(N, bool), []
files, scorers, several = map(json.loads, sys.argv[2:])
for file in files:
    model = load_model(file, device="cuda")
    for scorer in scorers:
        for options in several:
            told = []
            for path in ("sm_90a", "portable"):
                with forced_path(path):
                    dry_device.launches.clear()
                    request = ScoreRequest(model, ids, ids, mask, mask, by_head=True, progress=told.append)
                    got = SCORERS.build(scorer, options).score(request)
                    assert got.scores.shape == (N,) and got.by_head.shape[1:] == (model.config.heads, 10)
            assert sum(told) == 2 * N * model.config.layers, told
            found.append(dict(dry_device.launches))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str, int], dict[str, int]]:
    """Launches by role, scorer and number of the options: one process, for most of its time would be its start."""
    files = [str(embedded(role)) for role in ROLES]
    launches = json.loads(walked(SCORE, *map(json.dumps, (files, SCORERS, OPTIONS))))
    cells = [(role, scorer, at) for role in ROLES for scorer in SCORERS for at in range(len(OPTIONS))]
    return dict(zip(cells, launches, strict=True))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("options", OPTIONS)
def test_every_launch_fits(role, scorer, options, found) -> None:
    launches = found[role, scorer, OPTIONS.index(options)]
    folds = {name: count for name, count in launches.items() if name.startswith("importance")}
    assert len(folds) == 4
    assert len(set(folds.values())) == 1
    assert ("unrotate" in launches) == (options.get("rotary") == "none")
    assert any(name.startswith("block_select") for name in launches) == ("sparse" in options)
