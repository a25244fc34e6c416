"""Pairs of models in a sweep file: target and drafter, and a draft where cells guess ahead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sp.config import fields_of
from sp.errors import GGUFError
from sp.hub import model_path
from sp.scoring import Scorer
from sp.session.loaded import default_drafter, embedded
from sp.session.options import ModelOptions
from sp.studies.sweep.combine import Combination
from sp.studies.sweep.located import Located, check_located


@dataclass(frozen=True)
class Pair(ModelOptions):
    """Files of the models, and what is asked of them.

    Parameters
    ----------
    draft : Path, optional
        DFlash draft of the target, where cells guess ahead; the embedded target has its own.
    """

    draft: Path | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What is asked of RoPE and arithmetic, where it is not what both are without, as `Pipeline.open` takes it."""
        names = ("target_rope", "drafter_rope", "math", "drafter_math")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(Pair, name)}


OF_PAIRS = {one.name: one for one in fields_of(Pair)}


def make_pair(each: Combination) -> Pair:
    """The model files of a combination, which must exist, and what is asked of them."""
    found: dict[str, Any] = {}
    for name, value in each.items():
        a_file = OF_PAIRS[name].hint == Path | None
        found[name] = located_model(value, name) if a_file else check_located(value, OF_PAIRS[name].hint, name)
    return Pair(**found)


def located_model(value: Located, role: str) -> Path:
    """The path of a model's file, which must exist, or the name of a known model that was fetched."""
    path = Path(check_located(value, str, role))
    try:
        there = model_path(path).is_file()
    except GGUFError as error:
        raise value.error(error) from None
    if not there:
        raise value.error(f"{role} {path} is not a file; give the path of a GGUF file, or leave it out")
    return path


def with_drafter(pair: Pair, scorers: Iterable[type[Scorer]]) -> Pair:
    """The pair, where no drafter of another target than the embedded one is named, with that of `default_drafter`."""
    if pair.target is None or pair.drafter is not None:
        return pair
    return replace(pair, drafter=default_drafter(pair.target, scorers))


def with_draft(pair: Pair, guesses: bool, cells: Located) -> Pair:
    """The pair with a draft if cells guess ahead, the embedded one for the embedded target, and else without."""
    if guesses and pair.draft is None and pair.target is not None:
        raise cells.error(f"cells that guess ahead need a draft of {pair.target.name}; name it in pairs: draft: FILE")
    return replace(pair, draft=(pair.draft or embedded("draft")) if guesses else None)
