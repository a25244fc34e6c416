"""Reuse finished cells of earlier runs: a scorer added to a sweep is run alone, and no cell is run a second time.

A run is a block of examples in every cell, and its hash covers all of them. If a cell is added to a sweep file, the
hash changes, although most of the results are on disk; `EarlierCells` finds them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sp.evals.natural.questions import NaturalTask
from sp.studies.sweep.provenance import code_sha256, files_sha256, outside_files, scorer_files
from sp.studies.sweep.store import SweepResults
from sp.studies.sweep.sweep import Run, SweepCell, config_hash

OF_CELLS = ("cells", "full", "files")  # keys of a run's configuration that depend on its cells
COMPRESSION = ("scorer", "selector", "keep_ratio", "positions", "mapping", "mark_omitted", "state_gaps")
"""Options of a cell that do not affect a full prefill; its other options are those of the first cell."""


@dataclass(frozen=True)
class Remainder:
    """The cells of a run that earlier runs lack.

    Attributes
    ----------
    run : Run, optional
        The examples in the cells that are missing; None if there is none.
    completes : tuple of str
        Hashes of the earlier runs that have the other cells.
    """

    run: Run | None
    completes: tuple[str, ...] = ()


class EarlierCells:
    """Finished runs of a folder, indexed by their examples and models."""

    def __init__(self, results: SweepResults) -> None:
        self._blocks: dict[str, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
        for run, closing in results.runs.items():
            config = closing["config"]
            if isinstance(config.get("cells"), list):
                self._blocks[_block(config)].append((run, config))

    def remainder(self, run: Run, config: Mapping[str, Any]) -> Remainder:
        """Return the cells of a run with this configuration that no earlier run of the same examples has.

        A cell counts as finished only if every file that decides its rows, of weights or of a plugin, is the same.
        """
        earlier = self._blocks.get(_block(config), [])
        if not earlier:
            return Remainder(run)
        completes: dict[str, None] = {}  # keys in order of insertion, which a set does not keep
        missing: list[SweepCell] = []
        for cell in run.cells:
            needed = _digests(replace(run, cells=(cell,)))
            key = _canonical(cell.config)
            source = next(
                (name for name, known in earlier if key in map(_canonical, known["cells"]) and _same(needed, known)),
                None,
            )
            if source is None:
                missing.append(cell)
            else:
                completes[source] = None
        full = run.full
        if full:
            needed, key = _digests(replace(run, cells=())), _full_key(config)
            source = next(
                (n for n, known in earlier if known.get("full") and _full_key(known) == key and _same(needed, known)),
                None,
            )
            if source is not None:
                completes[source], full = None, False
        if not missing and not full:
            return Remainder(None, tuple(completes))
        rest = replace(run, cells=tuple(missing), full=full)
        if full and (not missing or _full_key(rest.config({})) != _full_key(config)):
            return Remainder(run)  # with another first cell, or none, the full prefill would have other options
        if run.full and isinstance(run.spec.task, NaturalTask):
            return Remainder(run)  # cells of task natural answer only in a run that has the full prefill, too
        return Remainder(rest, tuple(completes))


def files_of(run: Run) -> dict[str, str]:
    """Return the SHA-256 by name of every file besides the models that decides the rows of a run."""
    return scorer_files(run.config({}), run.label) | outside_files(run)


def _digests(run: Run) -> dict[str, set[str]]:
    """Return the acceptable digests by name; earlier versions hashed plugin files with comments and docstrings."""
    weights = scorer_files(run.config({}), run.label)
    digests = {name: {digest} for name, digest in weights.items()}
    for digest_of in (code_sha256, files_sha256):
        for name, digest in outside_files(run, digest_of).items():
            digests.setdefault(name, set()).add(digest)
    return digests


def _same(needed: Mapping[str, Collection[str]], config: Mapping[str, Any]) -> bool:
    stored = config.get("files", {})
    return all(stored.get(name) in digests for name, digests in needed.items())


def _block(config: Mapping[str, Any]) -> str:
    return config_hash({key: value for key, value in config.items() if key not in OF_CELLS})


def _full_key(config: Mapping[str, Any]) -> str:
    first = next(iter(config["cells"]), None)
    options = first if isinstance(first, dict) else {}
    return _canonical({key: value for key, value in options.items() if key not in COMPRESSION})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
