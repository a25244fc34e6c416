"""The server's options, and what a request changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sp.chat import Thinking
from sp.config import from_mapping
from sp.conversation.options import Recall
from sp.decode import DECODERS, Decoder, Sample, Speculative
from sp.errors import ConfigError
from sp.pipeline import RunOptions
from sp.scoring import SCORERS, Scorer
from sp.scoring.reading import by_length
from sp.selection import SELECTORS
from sp.serve.choices.sampling import decoder_of
from sp.serve.errors import RequestError
from sp.serve.fields import BIGGEST, MAX_NAME, number, shown

Protect = Literal["auto", "turn", "paragraph"]


@dataclass(frozen=True)
class Defaults:
    """Options of the server: those of a run, the longest answer a request may ask for, whether it has a draft, and
    what is asked of thinking where a request does not say.
    """

    options: RunOptions = field(default_factory=RunOptions)
    max_new_tokens: int = 1024
    draft: bool = False
    thinking: Thinking = field(default_factory=Thinking)


@dataclass(frozen=True)
class Overrides:
    """`sp` of a request: how this prompt is compressed, where it differs from the server's options.

    Parameters
    ----------
    keep_ratio : float
        Share of the tokens that may be left out which the target reads; question, system message and markup are
        read on top of it.
    scorer, selector : str
        By name.
    alpha : float
        Threshold of the selector, if it has one of that name; else FlashPrefill's, by which the drafter then attends.
    off : bool
        Read the whole prompt.
    compress : {"auto", "always", "off"}
        As `--compress`.
    threshold : int
        As `--threshold`.
    protect : {"auto", "turn", "paragraph"}
        Whether the last part of the last user turn is kept, or of that what follows the last blank line; or, of one
        that is long, its question; see `sp.serve.question`.
    decode : str
        How the answer is decoded, by name; the server needs a draft for all but `greedy`.
    session : bool
        Whether the request goes on with a session, and leaves one.
    recall : {"auto", "append", "rewind", "off"}
        As `--recall`.
    return_kept : bool
        Whether the usage block says which text was kept, see `sp.serve.kept`.
    """

    keep_ratio: float | None = None
    scorer: str | None = None
    selector: str | None = None
    alpha: float | None = None
    off: bool = False
    compress: Literal["auto", "always", "off"] | None = None
    threshold: int | None = None
    protect: Protect = "auto"
    decode: str | None = None
    session: bool = True
    recall: Recall | None = None
    return_kept: bool = False


def overrides_of(given: Any) -> Overrides:
    """The field `sp` of a body, checked."""
    if given is None:
        return Overrides()
    if not isinstance(given, dict):
        raise RequestError(f"sp is a {shown(given)}; send an object such as {{'keep_ratio': 0.1}}", "sp")
    for name, value in given.items():
        if len(name) > MAX_NAME or (isinstance(value, str | list | dict) and len(value) > MAX_NAME):
            raise RequestError(f"sp.{name[:MAX_NAME]} is longer than any name; use a known one", "sp")
    try:
        return from_mapping(Overrides, given, "sp")
    except ConfigError as error:
        raise RequestError(str(error), "sp") from None


def options_of(body: Mapping[str, Any], given: Overrides, defaults: Defaults) -> RunOptions:
    """The server's options with what the request changes."""
    asked = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    changes: dict[str, Any] = {}
    if (most := number(body, asked, 1, defaults.max_new_tokens, whole=True)) is not None:
        changes["max_new_tokens"] = most
    if given.threshold is not None:
        changes["threshold"] = number({"sp.threshold": given.threshold}, "sp.threshold", 0, BIGGEST, whole=True)
    if given.keep_ratio is not None:
        changes["keep_ratio"] = given.keep_ratio
    if given.off and given.compress not in (None, "off"):
        raise RequestError(f"sp.off is true but sp.compress is {given.compress!r}; send one of them", "sp")
    if given.off or given.compress is not None:
        changes["compress"] = "off" if given.off else given.compress
    try:
        if given.scorer is not None:
            changes["scorer"] = _scorer(given.scorer)
        if given.selector is not None:
            changes["selector"] = SELECTORS.build(given.selector)
        decode = defaults.options.decode if given.decode is None else _decoder(given.decode, defaults)
        changes["decode"] = decoder_of(body, decode, given.decode)
        if not isinstance(changes["decode"], Sample):  # whose seed is its own: a conversation is the same with any
            seed = number(body, "seed", 0, BIGGEST, whole=True)
            changes |= {} if seed is None else {"seed": seed}
        options = replace(defaults.options, **changes)
        return options if given.alpha is None else _with_alpha(options, given.alpha)
    except ConfigError as error:
        raise RequestError(f"sp: {error}", "sp") from None


def _scorer(name: str) -> Scorer:
    """A scorer by name; not one that has the target answer first, and perhaps read the prompt many times over."""
    scorer = SCORERS.build(name)
    if scorer.oracle and scorer.reads_target:
        raise ConfigError(f"scorer {name} knows the target's answer before it scores, to evaluate others; take another")
    return by_length(scorer)


def _decoder(name: str, defaults: Defaults) -> Decoder:
    """The server's own decoder, options and all, if it is the one named; else that with its defaults."""
    if name == DECODERS.name_of(defaults.options.decode):
        return defaults.options.decode
    decoder = DECODERS.build(name)
    if isinstance(decoder, Speculative) and not defaults.draft:
        raise ConfigError(f"decode {name} needs a draft of the target, and this server has none; leave it out")
    return decoder


def _with_alpha(options: RunOptions, alpha: float) -> RunOptions:
    """A selector that has a threshold `alpha` takes it; else the drafter attends by FlashPrefill with it."""
    scorer: Any = options.scorer
    selector: Any = options.selector
    if hasattr(selector, "alpha"):
        return replace(options, selector=replace(selector, alpha=alpha))
    if hasattr(scorer, "sparse"):
        return replace(options, scorer=replace(scorer, sparse=f"alpha:{alpha:g}"))
    raise ConfigError(f"neither {type(selector).__name__} nor {type(scorer).__name__} has an alpha; leave it out")
