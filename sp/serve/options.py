"""The server's options, and the ones that a request can override."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from sp.chat import Thinking
from sp.chat.messages import describe_value
from sp.config import Option, Tokens, check_type, fields_of, from_mapping
from sp.decode import DECODERS, Decoder, SamplingDecoder, Speculative
from sp.errors import ConfigError, unknown_name
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import by_length
from sp.selection import SELECTORS
from sp.serve.fields import BIGGEST, MAX_NAME, RequestError, decoder_of, number
from sp.session import RunOptions
from sp.session.device_memory import Size
from sp.session.options import BY_NAME, Recall

Protect = Literal["auto", "turn", "paragraph"]


@dataclass(frozen=True)
class Defaults:
    """Defaults of the server: options of a run, the longest answer, a draft model, and thinking."""

    options: RunOptions = field(default_factory=RunOptions)
    max_new_tokens: int = 1024
    draft: bool = False
    thinking: Thinking = field(default_factory=Thinking)
    strict_fields: bool = False  # refuse unknown fields of a request


@dataclass(frozen=True)
class ServerOptions:
    """Limits of a server, and the sessions that it keeps.

    Parameters
    ----------
    max_tokens : int
        Longest answer of a request.
    sessions : int
        Conversations whose caches are kept; 0 for none.
    session_memory : Size
        Host memory for all of them, e.g. 40g.
    session_vram : Size, optional
        GPU memory for them between requests, e.g. 8g; without it, until others need it.
    session_dir : Path, optional
        Folder that keeps them between starts of the server; without it they are in memory only.
    session_disk : Size
        Disk space for all of them, e.g. 100g; the least recently used are deleted first.
    queue : int
        Requests that may wait.
    max_body : int
        Largest request body, in MiB.
    strict_fields : bool
        Refuse unknown fields of a request; else they are ignored and reported.
    """

    group: ClassVar[str] = "Server"

    max_tokens: Annotated[Tokens, Option(least=1)] = 4096
    sessions: Annotated[int, Option(least=0)] = 8
    session_memory: Size = Size(8 << 30)  # noqa: RUF009  a number
    session_vram: Size | None = None
    session_dir: Path | None = None
    session_disk: Size = Size(20 << 30)  # noqa: RUF009
    queue: Annotated[int, Option(least=1)] = 32
    max_body: Annotated[int, Option(least=1)] = 16
    strict_fields: bool = False


OUTSIDE = ("max_new_tokens", "seed")  # options of a run that have their own field in a request
REQUESTED = {
    run_field.name: run_field
    for run_field in fields_of(RunOptions)
    if run_field.option.textual and not run_field.option.fixed and run_field.name not in OUTSIDE
}  # options of a run that a request may change


@dataclass(frozen=True)
class Overrides:
    """The field `sp` of a request: options of a run, and further options of its prompt.

    Parameters
    ----------
    alpha : float
        Threshold of the selector, if it has one of that name; else the former name of sparse, as in alpha:0.1.
    off : bool
        Read the whole prompt.
    protect : {"auto", "turn", "paragraph"}
        Protected part of the last user turn: its last part (turn), what follows its last blank line (paragraph), or
        its question (auto); see `sp.serve.messages`.
    session : bool
        Continue a session, and leave one.
    recall : {"auto", "append", "rewind", "off"}
        How dropped text is recalled, if not as the server does.
    return_kept : bool
        Report in the usage block which text was kept, see `sp.serve.messages`.
    marked : bool
        Protect blocks that a client of /v1/messages marks with cache_control.
    progress : bool
        Report in a stream how far the prompt is read.
    run : mapping
        Options of a run that differ from the server's.
    """

    alpha: float | None = None
    off: bool = False
    protect: Protect = "auto"
    session: bool = True
    recall: Recall | None = None
    return_kept: bool = False
    marked: bool = True
    progress: bool = False
    run: Annotated[Mapping[str, Any], Option(textual=False)] = field(default_factory=dict)


def overrides_of(changes: Any) -> Overrides:
    """Parse the field `sp` of a body."""
    if changes is None:
        return Overrides()
    if not isinstance(changes, dict):
        raise RequestError(f"sp is a {describe_value(changes)}; send an object such as {{'keep_ratio': 0.1}}", "sp")
    for name, value in changes.items():
        if len(name) > MAX_NAME or (isinstance(value, str | list | dict) and len(value) > MAX_NAME):
            raise RequestError(f"sp.{name[:MAX_NAME]} is longer than any name; use a known one", "sp")
    own = {own_field.name: own_field for own_field in fields_of(Overrides) if own_field.option.textual}
    known, run = REQUESTED | own, {}
    try:
        for name, value in changes.items():
            if name not in known:
                raise unknown_name("option of sp", name, known)
            if name in REQUESTED and value is not None:
                where, option_field = f"sp.{name}", REQUESTED[name]
                # Scorers, selectors and decoders are given by name; `options_of` builds them.
                run[name] = check_type(value, str if name in BY_NAME else option_field.hint, where)
                if option_field.option.least is not None:
                    number({where: value}, where, int(option_field.option.least), BIGGEST, whole=True)
        rest = from_mapping(Overrides, {name: changes[name] for name in changes if name not in REQUESTED}, "sp")
        return replace(rest, run=run)
    except ConfigError as error:
        raise RequestError(str(error), "sp") from None


def options_of(body: Mapping[str, Any], overrides: Overrides, defaults: Defaults) -> RunOptions:
    """Return the server's options with the request's changes."""
    length_field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    changes: dict[str, Any] = {}
    if (most := number(body, length_field, -1, BIGGEST, whole=True)) is not None:
        if most == 0:
            raise RequestError(
                f"{length_field} is 0; send a whole number from 1, or -1 for all that the server gives", length_field
            )
        changes["max_new_tokens"] = min(most, defaults.max_new_tokens) if most > 0 else defaults.max_new_tokens
    if overrides.off and overrides.run.get("compress", "off") != "off":
        raise RequestError(f"sp.off is true but sp.compress is {overrides.run['compress']!r}; send one of them", "sp")
    try:
        named = {name: overrides.run[name] for name in BY_NAME if name in overrides.run}
        changes |= {**overrides.run, **({"compress": "off"} if overrides.off else {})}
        if "scorer" in named:
            changes["scorer"] = _scorer(named["scorer"])
        if "selector" in named:
            changes["selector"] = SELECTORS.build(named["selector"])
        decode = _decoder(named["decode"], defaults) if "decode" in named else defaults.options.decode
        changes["decode"] = decoder_of(body, decode, named.get("decode"))
        # A sampling decoder has its own seed, so that a session does not depend on the seed of a request.
        if not isinstance(changes["decode"], SamplingDecoder):
            seed = number(body, "seed", -BIGGEST, BIGGEST, whole=True)
            changes |= {} if seed is None else {"seed": seed % BIGGEST}
        options = replace(defaults.options, **changes)
        return options if overrides.alpha is None else _with_alpha(options, overrides.alpha)
    except ConfigError as error:
        raise RequestError(f"sp: {error}", "sp") from None


def _scorer(name: str) -> Scorer:
    """Build a scorer by name; refuse one that needs the target's answer first, and may read the prompt many times."""
    scorer = SCORERS.build(name)
    if scorer.oracle and scorer.reads_target:
        raise ConfigError(f"scorer {name} needs the target's answer before it scores, for evaluations; choose another")
    return by_length(scorer)


def _decoder(name: str, defaults: Defaults) -> Decoder:
    """Return the server's own decoder with its options, if it has this name; else build that decoder with defaults."""
    if name == DECODERS.name_of(defaults.options.decode):
        return defaults.options.decode
    decoder = DECODERS.build(name)
    if isinstance(decoder, Speculative) and not defaults.draft:
        raise ConfigError(f"decode {name} needs a draft model, and this server has none; leave it out")
    return decoder


def _with_alpha(options: RunOptions, alpha: float) -> RunOptions:
    """Set the threshold `alpha` of the selector, if it has one; else of the drafter's sparse attention
    (FlashPrefill).
    """
    scorer: Any = options.scorer
    selector: Any = options.selector
    if hasattr(selector, "alpha"):
        return replace(options, selector=replace(selector, alpha=alpha))
    if hasattr(scorer, "sparse"):
        return replace(options, scorer=replace(scorer, sparse=f"alpha:{alpha:g}"))
    raise ConfigError(f"neither {type(selector).__name__} nor {type(scorer).__name__} has an alpha; leave it out")
