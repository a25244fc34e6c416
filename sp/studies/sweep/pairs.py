"""Pairs of models in a sweep file: target and drafter, and a draft where cells guess ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sp.pipeline import embedded
from sp.studies.sweep.combine import Combination
from sp.studies.sweep.located import Located, check_located

PAIR_KEYS = ("target", "drafter", "draft")


@dataclass(frozen=True)
class Pair:
    """Files of the models; None for the embedded one, and for a draft where no cell guesses ahead."""

    target: Path | None = None
    drafter: Path | None = None
    draft: Path | None = None


def make_pair(each: Combination) -> Pair:
    """The model files of a combination; they must exist."""
    paths = {}
    for role, value in each.items():
        path = Path(check_located(value, str, role))
        if not path.is_file():
            raise value.error(f"{role} {path} is not a file; give the path of a GGUF file, or leave it out")
        paths[role] = path
    return Pair(**paths)


def with_draft(pair: Pair, guesses: bool, cells: Located) -> Pair:
    """The pair with a draft if cells guess ahead, the embedded one for the embedded target, and else without."""
    if guesses and pair.draft is None and pair.target is not None:
        raise cells.error(f"cells that guess ahead need a draft of {pair.target.name}; name it in pairs: draft: FILE")
    return replace(pair, draft=(pair.draft or embedded("draft")) if guesses else None)
