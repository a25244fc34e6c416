"""The device path of scorers that read with a drafter, without a device: every launch fits its declaration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dry_walk import walked
from scorer_cases import random_head

from sp.session.loaded import embedded, load

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


LATE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from sp.models import SessionCache, load_model
from sp.scoring import SCORERS, PrefixKeys, ScoreRequest
N, found = 700, []
ids, question = np.arange(N), np.arange(N) >= N - 20
model = load_model(sys.argv[2], device="cuda")
scorer = SCORERS.build("late_interaction", {"weights": sys.argv[3]})
for keys in (None, None, PrefixKeys(SessionCache(scorer.prefix_layers(model.config), device="cuda"))):
    dry_device.launches.clear()
    got = scorer.score(ScoreRequest(model, ids, ids, question, ~question, keys=keys))
    assert got.scores.shape == (N,) and got.by_layer.shape == (1, 22)
    found.append(dict(dry_device.launches))
print(json.dumps(found))
"""
ASKED = {"space_rows": 3, "space_alike": 1, "space_worth": 2, "space_parts": 1, "space_scores": 1, "importance_fold": 1}


def test_late_interaction_launches_little(tmp_path: Path) -> None:
    """One kernel for each layer that has rows in the space, and a few at the end, however many layers ask."""
    config, file = load(embedded("drafter"), device="cpu").model.config, tmp_path / "head.safetensors"
    random_head(config, query=(1, 2, 3), key=(0, 2, 3), rank=20).save(file, {})
    for launches in json.loads(walked(LATE, str(embedded("drafter")), str(file))):
        assert {name: launches.get(name, 0) for name in ASKED} == ASKED
        assert launches["unrotate"] == 2  # of all queries, and of the keys that the last layer looks at
        assert launches["kv_gather"] == 1
