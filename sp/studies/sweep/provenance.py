"""What models a result came from: content of the files and of the chat template, and their sizes for estimates."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.evals.natural.questions import NaturalTask
from sp.evals.trained_for import note_of_metadata
from sp.folders import cache_folder
from sp.gguf import GGUFFile, chat_template
from sp.models import ModelConfig, read_config
from sp.plugins import file_of
from sp.session.loaded import default_drafter, embedded
from sp.studies.sweep.sweep import Pair, Run
from sp.trace import write_atomic

EMBEDDED_SCORER = Path(str(files("sp") / "assets" / "scorer.safetensors"))
EMBEDDED_WEIGHTS = "embedded"


@dataclass(frozen=True)
class PairFacts:
    """Configurations of a pair's models, and what records say of them by role: `file`, `sha256`, `template_sha256`
    (None without one), `rope` and `math` where asked for, and `trained_for` where the drafter's file tells it."""

    target: ModelConfig
    drafter: ModelConfig
    models: dict[str, dict[str, Any]]

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 by role, and what was asked of RoPE and arithmetic, as they enter the hash of a run."""
        found = {role: facts["sha256"] for role, facts in self.models.items()}
        for key in ("rope", "math"):
            found |= {f"{role}_{key}": facts[key] for role, facts in self.models.items() if key in facts}
        return found


def pair_paths(pair: Pair) -> dict[str, Path]:
    """File of each role, that of `default_drafter` where none is named; a draft only where the pair has one."""
    paths = {"target": pair.target or embedded("target"), "drafter": pair.drafter or default_drafter(pair.target)}
    return paths | ({"draft": pair.draft} if pair.draft else {})


def pair_facts(pair: Pair) -> PairFacts:
    """Open the files far enough to describe them. SpError: a file is missing, damaged or no model."""
    configs: dict[str, ModelConfig] = {}
    models: dict[str, dict[str, Any]] = {}
    paths = pair_paths(pair)
    if draft := paths.pop("draft", None):
        models["draft"] = {"file": draft.name, "sha256": files_sha256([draft]), "template_sha256": None}
    for role, path in paths.items():
        with GGUFFile.open(path) as file:
            config, asked = read_config(file), pair.asked.get(f"{role}_rope")
            precision = pair.asked.get("precision" if role == "target" else f"{role}_precision")
            configs[role] = config if asked is None else asked.applied(config)
            template = chat_template(file)
            models[role] = {
                "file": file.path.name,
                "sha256": files_sha256(file.paths),
                "template_sha256": hashlib.sha256(template.encode()).hexdigest() if template else None,
                **({} if asked is None else {"rope": str(asked)}),
                **({} if precision is None else {"math": precision}),
            }
            if role == "drafter" and (note := note_of_metadata(file.metadata)):
                models[role]["trained_for"] = note
    return PairFacts(configs["target"], configs["drafter"], models)


def scorer_files(config: Mapping[str, Any], label: str) -> dict[str, str]:
    """SHA-256 by path of every file that a scorer of a run names in its options: weights, a map of heads. Embedded
    weights, which another version of the package may have trained anew, stand under `EMBEDDED_WEIGHTS`. ConfigError:
    one is missing."""
    found: dict[str, str] = {}
    for cell in config["cells"]:
        for option, value in cell["scorer"].items():
            if option == "weights" and value == "" and EMBEDDED_SCORER.is_file():
                found[EMBEDDED_WEIGHTS] = files_sha256([EMBEDDED_SCORER])
            if option == "name" or not isinstance(value, str) or not Path(value).suffix or value in found:
                continue  # words that are no files have no suffix
            if not os.path.isfile(value):
                raise ConfigError(
                    f"{label}: {option} of scorer {cell['scorer']['name']}: {value} is not a file; make it first, or "
                    "leave the scorer out"
                )
            found[value] = files_sha256([Path(value)])
    return found


def outside_files(run: Run) -> dict[str, str]:
    """SHA-256 by name of what is outside: files that define a run's task and strategies, and the questions it asks.
    What such files import is left aside."""
    cells = (cell.options for cell in run.cells)
    used = [run.spec.task, *(one for cell in cells for one in (cell.scorer, cell.selector, cell.decode))]
    found: dict[str, set[Path]] = {}
    for kind in {type(one) for one in used}:
        if file := file_of(kind):
            found.setdefault(file.name, set()).add(file)
    digests = {name: files_sha256(sorted(paths)) for name, paths in sorted(found.items())}
    asked = run.spec.task
    return digests | ({"questions": asked.digest(run.first, run.count)} if isinstance(asked, NaturalTask) else {})


def files_sha256(paths: Sequence[Path]) -> str:
    """SHA-256 of the files one after the other; remembered by path, size and time in the cache folder."""
    stats = [path.stat() for path in paths]
    key = json.dumps([[str(p.resolve()), s.st_size, s.st_mtime_ns] for p, s in zip(paths, stats, strict=True)])
    place = cache_folder() / "sha256" / hashlib.sha256(key.encode()).hexdigest()
    with suppress(OSError):
        return place.read_text()
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    with suppress(OSError):  # a read-only cache only costs time
        write_atomic(place, digest.hexdigest().encode())
    return digest.hexdigest()
