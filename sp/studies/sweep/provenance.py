"""Identity of the files behind a result: SHA-256 of models, templates, weights and plugin code, and model sizes."""

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
from sp.scoring.sparse import DRAFTING
from sp.session.loaded import default_drafter, embedded
from sp.studies.sweep.sweep import Pair, Run
from sp.trace import write_atomic

EMBEDDED_SCORER = Path(str(files("sp") / "assets" / "scorer.safetensors"))
EMBEDDED_WEIGHTS = "embedded"


@dataclass(frozen=True)
class PairFacts:
    """Configurations of a pair's models, and their facts as they are recorded.

    `models` has by role: `file`, `sha256`, `template_sha256` (None without a template), `rope` and `math` where they
    differ from the defaults, and `trained_for` where the drafter's file has such a note.
    """

    target: ModelConfig
    drafter: ModelConfig
    models: dict[str, dict[str, Any]]

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 by role, and the options of RoPE and precision, as they enter the hash of a run."""
        hashes = {role: facts["sha256"] for role, facts in self.models.items()}
        for key in ("rope", "math"):
            hashes |= {f"{role}_{key}": facts[key] for role, facts in self.models.items() if key in facts}
        return hashes


def pair_paths(pair: Pair) -> dict[str, Path]:
    """Return the file of each role: the `default_drafter` if none is named, a draft model only if the pair has one."""
    paths = {"target": pair.target or embedded("target"), "drafter": pair.drafter or default_drafter(pair.target)}
    return paths | ({"draft": pair.speculator} if pair.speculator else {})


def pair_facts(pair: Pair) -> PairFacts:
    """Read what describes the models of a pair from their files. SpError if a file is missing, damaged or no model."""
    configs: dict[str, ModelConfig] = {}
    models: dict[str, dict[str, Any]] = {}
    paths = pair_paths(pair)
    if draft := paths.pop("draft", None):
        models["draft"] = {"file": draft.name, "sha256": files_sha256([draft]), "template_sha256": None}
    for role, path in paths.items():
        with GGUFFile.open(path) as file:
            config, rope = read_config(file), pair.changed_options.get(f"{role}_rope")
            precision = pair.changed_options.get("precision" if role == "target" else f"{role}_precision")
            configs[role] = config if rope is None else rope.applied(config)  # scaling changes the context length
            template = chat_template(file)
            models[role] = {
                "file": file.path.name,
                "sha256": files_sha256(file.paths),
                "template_sha256": hashlib.sha256(template.encode()).hexdigest() if template else None,
                **({} if rope is None else {"rope": str(rope)}),
                **({} if precision is None else {"math": precision}),
            }
            if role == "drafter" and (note := note_of_metadata(file.metadata)):
                models[role]["trained_for"] = note
    return PairFacts(configs["target"], configs["drafter"], models)


def scorer_files(config: Mapping[str, Any], label: str) -> dict[str, str]:
    """Return the SHA-256 by path of every file in the options of a run's scorers, such as weights or a map of heads.

    Embedded weights, which may differ between versions of the package, have the key `EMBEDDED_WEIGHTS`. Raises
    ConfigError if a file is missing.
    """
    digests: dict[str, str] = {}
    for cell in config["cells"]:
        for option, value in cell["scorer"].items():
            if option == "weights" and value == "" and EMBEDDED_SCORER.is_file():
                digests[EMBEDDED_WEIGHTS] = files_sha256([EMBEDDED_SCORER])
            if (
                option in ("name", *DRAFTING)
                or not isinstance(value, str)
                or not Path(value).suffix
                or value in digests
            ):
                continue  # a text without a suffix is no file
            if not os.path.isfile(value):
                raise ConfigError(
                    f"{label}: {option} of scorer {cell['scorer']['name']}: {value} is not a file; make it first, or "
                    "omit the scorer"
                )
            digests[value] = files_sha256([Path(value)])
    return digests


def code_sha256(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of the statements of Python files, without comments, docstrings and layout.

    Imports and assertions count, too, as the results of a scorer may depend on them.
    """
    digest = hashlib.sha256()
    for path in paths:
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):
                node.body = [statement for statement in body if not is_prose(statement)]  # type: ignore[attr-defined]
        digest.update(ast.dump(tree).encode() + b"\0")  # separates files; a dump has no NUL
    return digest.hexdigest()


def outside_files(run: Run, digest_of: Callable[[Sequence[Path]], str] = code_sha256) -> dict[str, str]:
    """Return digests by name of everything outside the package that decides a run's rows.

    These are the Python files that define its task and strategies, by `digest_of`, and the questions that it asks.
    Modules that such files import are not included.
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
    """Return the SHA-256 of the concatenated files, cached by path, size and time of change in the cache folder."""
    # A hash reads all of a model's GB, hence the cache.
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
