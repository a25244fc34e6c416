"""The server's options, and what a request changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from sp.chat import Thinking
from sp.config import Option, Tokens, check_type, fields_of, from_mapping
from sp.decode import DECODERS, Decoder, SamplingDecoder, Speculative
from sp.errors import ConfigError, unknown_name
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import by_length
from sp.selection import SELECTORS
from sp.serve.fields import BIGGEST, MAX_NAME, RequestError, decoder_of, number, shown
from sp.session import RunOptions
from sp.session.device_memory import Size
from sp.session.options import BY_NAME, Recall

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
    strict_fields: bool = False  # whether unknown fields of a request are refused


@dataclass(frozen=True)
class ServerOptions:
    """What a server takes and remembers.

    Parameters
    ----------
    max_tokens : int
        Longest answer a request may ask for.
    sessions : int
        Conversations to remember; 0 for none.
    session_memory : Size
        Host memory for all of them, e.g. 40g.
    session_vram : Size, optional
        GPU memory for them between requests, e.g. 8g; else until others need it.
    session_dir : Path, optional
        Folder that keeps them from one start of the server to the next; in memory alone without it.
    session_disk : Size
        Disk for all of them, e.g. 100g; those used longest ago go first.
    queue : int
        Requests that may wait.
    max_body : int
        Largest request body, in MiB.
    strict_fields : bool
        Refuse unknown fields of a request; else they are ignored, and told.
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


OUTSIDE = ("max_new_tokens", "seed")  # options of a run that have a field of their own beside `sp`
REQUESTED = {
    one.name: one
    for one in fields_of(RunOptions)
    if one.option.textual and not one.option.fixed and one.name not in OUTSIDE
}  # options of a run that a request may change


@dataclass(frozen=True)
class Overrides:
    """What a request says in its field `sp`: options of a run, and how else its prompt is read.

    Parameters
    ----------
    alpha : float
        Threshold of the selector, if it has one of that name; else the old word for sparse, as in alpha:0.1.
    off : bool
        Read the whole prompt.
    protect : {"auto", "turn", "paragraph"}
        Whether the last part of the last user turn is kept, or of that what follows the last blank line; or, of one
        that is long, its question; see `sp.serve.messages`.
    session : bool
        Whether the request goes on with a session, and leaves one.
    recall : {"auto", "append", "rewind", "off"}
        How what was left out comes back, where that differs from the server's.
    return_kept : bool
        Whether the usage block says which text was kept, see `sp.serve.messages`.
    marked : bool
        Whether blocks that a client of /v1/messages marks with cache_control stay.
    progress : bool
        Whether a stream tells how far the prompt is read.
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


def overrides_of(given: Any) -> Overrides:
    """The field `sp` of a body, checked."""
    if given is None:
        return Overrides()
    if not isinstance(given, dict):
        raise RequestError(f"sp is a {shown(given)}; send an object such as {{'keep_ratio': 0.1}}", "sp")
    for name, value in given.items():
        if len(name) > MAX_NAME or (isinstance(value, str | list | dict) and len(value) > MAX_NAME):
            raise RequestError(f"sp.{name[:MAX_NAME]} is longer than any name; use a known one", "sp")
    known, run = REQUESTED | {one.name: one for one in fields_of(Overrides) if one.option.textual}, {}
    try:
        for name, value in given.items():
            if name not in known:
                raise unknown_name("option of sp", name, known)
            if name in REQUESTED and value is not None:
                where, one = f"sp.{name}", REQUESTED[name]
                run[name] = check_type(value, str if name in BY_NAME else one.hint, where)
                if one.option.least is not None:
                    number({where: value}, where, int(one.option.least), BIGGEST, whole=True)
        rest = from_mapping(Overrides, {name: given[name] for name in given if name not in REQUESTED}, "sp")
        return replace(rest, run=run)
    except ConfigError as error:
        raise RequestError(str(error), "sp") from None


def options_of(body: Mapping[str, Any], given: Overrides, defaults: Defaults) -> RunOptions:
    """The server's options with what the request changes."""
    asked = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    changes: dict[str, Any] = {}
    if (most := number(body, asked, -1, BIGGEST, whole=True)) is not None:
        if most == 0:
            raise RequestError(f"{asked} is 0; send a whole number from 1, or -1 for all that the server gives", asked)
        changes["max_new_tokens"] = min(most, defaults.max_new_tokens) if most > 0 else defaults.max_new_tokens
    if given.off and given.run.get("compress", "off") != "off":
        raise RequestError(f"sp.off is true but sp.compress is {given.run['compress']!r}; send one of them", "sp")
    try:
        named = {name: given.run[name] for name in BY_NAME if name in given.run}
        changes |= {**given.run, **({"compress": "off"} if given.off else {})}
        if "scorer" in named:
            changes["scorer"] = _scorer(named["scorer"])
        if "selector" in named:
            changes["selector"] = SELECTORS.build(named["selector"])
        decode = _decoder(named["decode"], defaults) if "decode" in named else defaults.options.decode
        changes["decode"] = decoder_of(body, decode, named.get("decode"))
        # The seed of a sampling decoder is its own, so that a conversation does not depend on the seed of a request.
        if not isinstance(changes["decode"], SamplingDecoder):
            seed = number(body, "seed", -BIGGEST, BIGGEST, whole=True)
            changes |= {} if seed is None else {"seed": seed % BIGGEST}
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
