"""Will it run? A verdict on a model file, for a card or for the smallest that does, and what to take instead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from sp.models.config import ModelConfig
from sp.models.file.rope_keys import needed_scaling
from sp.models.synthetic.shapes import find_shape, list_shapes
from sp.planning.cards import (
    CARDS,
    KEEP,
    LARGEST_DRAFTER,
    Drafter,
    best,
    drafters_for,
    longest,
    room,
    scoring_way,
    smallest_card,
    ways,
    weights_bytes,
)
from sp.planning.subject import Subject

COMMON = ("q8_0", "q6_k", "q5_k", "q4_k_m", "iq4_xs", "q3_k")
"""File types that publishers of most models offer; those of fewer bits are held as Q8_0."""
USUAL = "q4_k_m"
NEAR = 1.25
"""How much larger than a file that cannot run the one may be that is proposed in its place."""


@dataclass(frozen=True)
class Verdict:
    """Whether a model file runs.

    Attributes
    ----------
    runs : {"yes", "with", "no"}
    card : int or None
        GiB of the card that it is about; None where no card matters.
    tokens : int or None
        Of prompt and answer.
    options : tuple of str
        Of `sp run`, with which it runs.
    why : str or None
        Why it does not.
    instead : str or None
        What to take in its place.
    role : {"target", "drafter"}
        What it is judged as: a small model is one that scores prompts for a larger one.
    together : int
        Cards of that size that share it.
    window : int or None
        Of a drafter whose window ends before `tokens`.
    beyond : str or None
        What such a drafter reads them with; see `scaled_by`.
    """

    runs: Literal["yes", "with", "no"]
    card: int | None = None
    tokens: int | None = None
    options: tuple[str, ...] = ()
    why: str | None = None
    instead: str | None = None
    role: Literal["target", "drafter"] = "target"
    together: int = 1
    window: int | None = None
    beyond: str | None = None

    @property
    def line(self) -> str:
        """In words.

        >>> Verdict("with", 24, 131072, ("--kv q4_0",)).line
        'yes, with --kv q4_0: 128K tokens on a card of 24 GB'
        >>> Verdict("yes", 12, 131072, role="drafter", window=8192, beyond="YaRN x16").line
        'yes, as a drafter: 8K tokens, or 128K with YaRN x16, on a card of 12 GB'
        """
        if self.runs == "no":
            return f"no: {self.why}"
        on = "a card" if self.together == 1 else f"each of {self.together} cards"
        tokens = self.tokens or 0
        read = f"{spoken(tokens)} tokens"
        if self.window is not None:
            read = f"{spoken(self.window)} tokens, or {spoken(tokens)} with {self.beyond},"
        where = "" if self.card is None else f": {read} on {on} of {self.card} GB"
        said = ", as a drafter" if self.role == "drafter" else ""
        said += f", with {' '.join(self.options)}" if self.options else ""
        return f"yes{said}{where}"


def spoken(tokens: int) -> str:
    """A length in binary thousands, or as it is.

    >>> spoken(131072), spoken(1000)
    ('128K', '1000')
    """
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def scaled_by(config: ModelConfig, tokens: int) -> str:
    """What has a drafter read so many tokens, beyond its window: YaRN by itself, or an option where it takes none.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> [scaled_by(find_shape(name).config, 1 << 20) for name in ("qwen3-0.6b", "qwen3.6-27b")]
    ['YaRN x32', '--drafter-rope yarn:4']
    """
    if (scaling := needed_scaling(config, tokens)) is not None:
        return f"YaRN x{scaling.factor:g}"
    return f"--drafter-rope yarn:{1 << max(-(-tokens // config.context) - 1, 1).bit_length()}"


def is_small(model: Subject) -> bool:
    """Whether a model is of the size of drafters."""
    return model.parameters <= LARGEST_DRAFTER


def proposed_drafter(target: Subject) -> Drafter | None:
    """The published model to score for a target; None where none is small enough, or it is of that size itself."""
    if target.config is None or is_small(target):
        return None
    return next(iter(drafters_for(target.config, target.parameters)), None)


def judge(target: Subject, drafter: Drafter | None, card: int | None, tokens: int, keep: float = KEEP) -> Verdict:
    """The verdict.

    Parameters
    ----------
    target : Subject
    drafter : Drafter or None
        Who scores prompts for it; None if they are read in full.
    card : int or None
        GiB; the smallest of `CARDS` that does, if left out.
    tokens : int
        Of prompt and answer.
    keep : float
        Share of the prompt that is read after a drafter has scored it.
    """
    if target.stopped is not None:
        return Verdict("no", why=target.stopped.line, instead=_replacement(target, card, tokens))
    config, weights = target.config, target.weights
    if not target.on_device or config is None or weights is None:
        return Verdict("with", options=("--device cpu",))
    role: Literal["target", "drafter"] = "drafter" if drafter is None and is_small(target) else "target"
    if role == "drafter":
        found = [] if target.reader is None else [scoring_way(target.reader, tokens)]
    else:
        found = list(ways(config, weights, drafter, tokens, keep, target.stacks, alone=target.alone))
    if not found:
        why = f"{spoken(tokens)} tokens are more than the window of {config.context}, and no drafter compresses them"
        return Verdict("no", card, tokens, why=why)
    where = card or smallest_card(found)
    way = best(found, where) if where else None
    if where is None or way is None:
        least, most = min(one.nbytes for one in found), card or CARDS[-1]
        shared = "" if target.alone else f" on each of {target.cards} cards"
        taken = f"{spoken(tokens)} tokens take {least / 2**30:.1f} GiB{shared}"
        why = f"{taken}, and a card of {most} GB has {room(most) >> 30}"
        instead = _instead_of(target, drafter, most, tokens, keep) if role == "target" else None
        return Verdict("no", most, tokens, why=why, instead=instead, role=role, together=target.cards)
    options = way.options(where)
    window = config.context if role == "drafter" and config.context < tokens else None
    return Verdict(
        "with" if options else "yes",
        where,
        tokens,
        options,
        role=role,
        together=target.cards,
        window=window,
        beyond=None if window is None else scaled_by(config, tokens),
    )


def _instead_of(target: Subject, drafter: Drafter | None, card: int, tokens: int, keep: float) -> str | None:
    """What to take where memory does not suffice: a shorter prompt, the same model in fewer bits, or a smaller one."""
    assert target.config is not None
    assert target.weights is not None
    found = longest(target.config, target.weights, drafter, card, keep, target.stacks, target.alone)
    shorter = [f"a prompt of up to {spoken(found[0])}"] if found and found[0] < tokens else []
    others = [*shorter, *_narrower(target, drafter, card, tokens, keep)]
    return ", or ".join(others or (_published_for(card, tokens) if target.alone else ["more cards"])) or None


def _replacement(target: Subject, card: int | None, tokens: int) -> str | None:
    """What to take in place of a file that does not run; None where its own line says that."""
    if target.draft or not target.names:
        return None
    if target.config is None:
        smallest = min(size for *_, size in _published())
        return next(iter(_published_for(card, tokens, max(int(NEAR * target.nbytes), smallest))), None)
    undecoded = any(one.stops and one.of_format for one in target.hindrances)
    return f"the same model as {USUAL.upper()}" if undecoded else None


def _narrower(target: Subject, drafter: Drafter | None, card: int, tokens: int, keep: float) -> list[str]:
    """The same model in the common file type of the most bits that fits."""
    sizes = {name: target.weights_as(name) for name in COMMON}
    assert target.config is not None
    for name, nbytes in sorted(sizes.items(), key=lambda one: -(one[1] or 0)):
        found = [] if nbytes is None else list(ways(target.config, nbytes, drafter, tokens, keep, alone=target.alone))
        if nbytes is not None and best(found, card):
            on = "the card" if target.alone else "each card"
            return [f"the same model as {name.upper()} ({nbytes / 2**30:.1f} GiB on {on})"]
    return []


def _published_for(card: int | None, tokens: int, most: int | None = None) -> list[str]:
    """The largest published model that runs on a card, of a file of at most so many bytes."""
    for name, held, size in _published():
        config = find_shape(name).config
        fits = card is None or best(list(ways(config, held, _drafter_of(name), tokens)), card)
        if fits and (most is None or size <= most):
            return [f"a file of {name} as {USUAL.upper()} ({size / 1e9:.1f} GB)"]
    return []


def _drafter_of(name: str) -> Drafter | None:
    shape = find_shape(name)
    size = sum(tensor.size for tensor in shape.tensors())
    return next(iter(drafters_for(shape.config, size)), None) if size > LARGEST_DRAFTER else None


@cache
def _published() -> tuple[tuple[str, int, int], ...]:
    """Name, bytes on the device and bytes of the file of every published shape a GPU runs, the largest first."""
    found = []
    for name in list_shapes():
        shape = find_shape(name)
        if not name.startswith("tiny-"):
            plan = shape.plan(USUAL)
            held = weights_bytes(shape.config, {tensor: fmt for tensor, _, fmt in plan})
            found.append((name, held, sum(fmt.nbytes(size) for _, size, fmt in plan)))
    return tuple(sorted(found, key=lambda one: -one[1]))
