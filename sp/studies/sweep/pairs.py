"""Pairs of models in a sweep file: target and drafter, and a draft where cells guess ahead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sp.errors import ConfigError, GGUFError
from sp.hub import model_path
from sp.models import AskedScaling, read_math
from sp.quant import Math
from sp.scoring import Scorer
from sp.session.load import embedded
from sp.session.pair import default_drafter
from sp.studies.sweep.combine import Combination
from sp.studies.sweep.keys import names_of
from sp.studies.sweep.located import Located, check_located

ROPES = ("target_rope", "drafter_rope")
MATHS = ("math", "drafter_math")


@dataclass(frozen=True)
class Pair:
    """Files of the models.

    Parameters
    ----------
    target, drafter : Path, optional
        GGUF files, or names of known models; the embedded ones if left out, but for another target the best drafter
        that was fetched.
    draft : Path, optional
        DFlash draft of the target, where cells guess ahead; the embedded target has its own.
    target_rope, drafter_rope : AskedScaling, optional
        Scaling of RoPE in place of the file's own: none, linear:2 or yarn:4.
    math, drafter_math : str
        What target and drafter multiply where they read a prompt: bf16, int8, fp8 or auto.
    """

    target: Path | None = None
    drafter: Path | None = None
    draft: Path | None = None
    target_rope: AskedScaling | None = None
    drafter_rope: AskedScaling | None = None
    math: str = "bf16"
    drafter_math: str = "bf16"

    @property
    def ropes(self) -> dict[str, AskedScaling]:
        """Scalings that are asked for, as `Pipeline.open` takes them."""
        return {name: asked for name in ROPES if (asked := getattr(self, name)) is not None}

    @property
    def maths(self) -> dict[str, str]:
        """Arithmetic other than BF16, as `Pipeline.open` takes it."""
        return {name: asked for name in MATHS if (asked := getattr(self, name)) != Math.BF16}


PAIR_KEYS = names_of(Pair)


def make_pair(each: Combination) -> Pair:
    """The model files of a combination, which must exist, and what is asked of them."""
    found: dict[str, Any] = {}
    for role, value in each.items():
        if role in (*ROPES, *MATHS):
            found[role] = _asked(role, value)
            continue
        found[role] = located_model(value, role)
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


def _asked(role: str, value: Located) -> AskedScaling | str:
    text = check_located(value, str, role)
    try:
        return str(read_math(text, role)) if role in MATHS else AskedScaling.parse(text, role)
    except ConfigError as error:
        raise value.error(error) from None


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
