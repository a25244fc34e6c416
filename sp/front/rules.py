"""How a request is shortened: the options of a front, and what one request changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from sp.chat.messages import describe_value
from sp.config import Option, from_mapping
from sp.errors import ConfigError, short
from sp.serve.fields import RequestError

KEEP_RATIO_HEADER = "x-sp-keep-ratio"


@dataclass(frozen=True)
class Rules:
    """Options that apply to a request.

    Attributes
    ----------
    keep_ratio : float
        Share of a text's tokens to keep, in (0, 1].
    threshold : int
        Tokens of a transcript below which nothing is shortened.
    max_prompt_tokens : int, optional
        Tokens that the upstream server takes of a prompt; None for any number.
    recall : bool
        Restore omitted passages that a later question needs.
    shorten_newest : bool
        Shorten tool results at once, before an assistant has read them whole. The upstream server then reads each
        result once and short, instead of whole first and short in the next turn.
    """

    keep_ratio: float = 0.2
    threshold: int = 2048
    max_prompt_tokens: int | None = None
    recall: bool = True
    shorten_newest: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.keep_ratio <= 1:
            raise ConfigError(f"keep_ratio must be above 0 and at most 1, not {self.keep_ratio:g}")
        limits = (("threshold", self.threshold, 0), ("max_prompt_tokens", self.max_prompt_tokens, 64))
        for name, value, least in limits:
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, not {value}")


@dataclass(frozen=True)
class RequestRules:
    """The field `sp` of a request; None leaves the front's option. `off`: pass the request on unchanged."""

    keep_ratio: float | None = None
    threshold: Annotated[int | None, Option(least=0)] = None
    max_prompt_tokens: Annotated[int | None, Option(least=64)] = None
    recall: bool | None = None
    shorten_newest: bool | None = None
    off: bool = False


def rules_of(defaults: Rules, field: Any, header: str | None) -> Rules | None:
    """Merge the options of a front with a request's field `sp` and header; None if nothing is to be shortened.

    >>> rules_of(Rules(), {"keep_ratio": 0.5}, "0.1").keep_ratio, rules_of(Rules(), None, "off")
    (0.5, None)
    """
    changes: dict[str, Any] = {}
    if header is not None:
        if header.strip().lower() == "off":
            return None
        try:
            changes["keep_ratio"] = float(header)
        except ValueError:
            message = f"{KEEP_RATIO_HEADER} is {short(header)!r}; send a share such as 0.2, or off"
            raise RequestError(message) from None
    if field is not None and not isinstance(field, Mapping):
        raise RequestError(f"sp is {describe_value(field)}; send an object such as {{'keep_ratio': 0.2}}", "sp")
    try:
        options = asdict(from_mapping(RequestRules, field or {}, "sp"))
        if options.pop("off"):
            return None
        changes |= {name: value for name, value in options.items() if value is not None}
        return replace(defaults, **changes) if changes else defaults
    except ConfigError as error:
        raise RequestError(str(error), "sp") from None
