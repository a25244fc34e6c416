"""What models a result came from: content of the files and of the chat template, and their sizes for estimates."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
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
from sp.kernels.host_code import is_prose
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
    return paths | ({"draft": pair.speculator} if pair.speculator else {})


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


def code_sha256(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of what Python files do: comments, docstrings and layout do not count.

    Every statement counts, imports and assertions too, for the results of a scorer may depend on them.
    """
    digest = hashlib.sha256()
    for path in paths:
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):
                node.body = [statement for statement in body if not is_prose(statement)]  # type: ignore[attr-defined]
        digest.update(ast.dump(tree).encode() + b"\0")
    return digest.hexdigest()


def outside_files(run: Run, digest_of: Callable[[Sequence[Path]], str] = code_sha256) -> dict[str, str]:
    """Return digests by name of what decides a run's rows from outside the package.

    These are the Python files that define its task and strategies, by `digest_of`, and the questions that it asks.
    What such files import is not looked at.
    """
    cells = (cell.options for cell in run.cells)
    used = [run.spec.task, *(part for cell in cells for part in (cell.scorer, cell.selector, cell.decode))]
    files: dict[str, set[Path]] = {}
    for kind in {type(strategy) for strategy in used}:
        if file := file_of(kind):
            files.setdefault(file.name, set()).add(file)
    digests = {name: digest_of(sorted(paths)) for name, paths in sorted(files.items())}
    task = run.spec.task
    return digests | ({"questions": task.digest(run.first, run.count)} if isinstance(task, NaturalTask) else {})


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
