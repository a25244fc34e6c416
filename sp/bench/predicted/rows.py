"""Records of whole passes as rows: what was measured, what is predicted, and whether anything was fitted to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sp.bench.predicted.warm import newest_warm
from sp.bench.record import key_of
from sp.errors import ConfigError
from sp.models.arithmetic import AUTO, FIRST_LAYERS, in_attention, kept_rounded
from sp.models.inspect.known_cards import find_card
from sp.models.passes.prefill_graphs import MOST
from sp.models.timing.fitted import Fitted
from sp.models.timing.predict import Predictor
from sp.models.timing.rounded import Rounded
from sp.models.timing.several import share_of
from sp.models.timing.work import Weights
from sp.ops.byte_rows.rows import ROUNDED_TOKENS
from sp.quant import Math
from sp.session.measured import cards_of, maths_of

CARD = "h200"
"""Whose records rates are fitted to; rows of other cards, which are known by their data sheets alone, are held out."""
FIT_SHAPES, FIT_TOKENS = ("qwen3.6-27b", "qwen3-0.6b"), (512, 32768)
"""Models and prompts whose rows may be fitted to; rows of any other model or length are held out, always."""
EIGHT_TOKENS = 8192
"""Prompt of `FIT_SHAPES[0]` whose prefill in int8 may be fitted to, of kept weights, once for each path of kernels."""
LEFT_SINCE = "2026-11-24T04:22:55+00:00"
"""Since when the first layers stay in BF16 where int8 is asked for (`FIRST_LAYERS`): before, all were in int8.

Older records on Hopper's kernels are no rows. Of the portable ones there are no others, so that they are predicted as
they were measured. Of drafters with products in int8, rows are those for which ``auto`` chose these and keeps them
rounded.
"""

TURNS_SINCE = "2026-11-25T22:00:00+00:00"
"""Since when cards take turns at queueing their work; older records of several cards, which waited for the host, are no
rows."""
GRAPHS_SINCE = {1: "2026-11-23T18:26:33+00:00", 2: "2026-11-27T12:00:00+00:00"}
"""Since when one card reads short runs in graphs, and two that share a target longer ones, as more cards always did;
before, launch by launch. Of one card such records are no rows, but for those that the host's part is fitted to."""
CHOSEN_SINCE = "2026-11-28T13:26:00+00:00"
"""Since when several cards that read for a drafter are given their work from a processor that is chosen; before, from
one that was often slow, and older records are no rows."""
RESOLVED = ("math", "products", "kept_bytes", "drafter_math", "drafter_products", "drafter_kept_bytes")
"""What ``auto`` came to: of what was asked for with it the newest record is a row, whatever it came to before."""


@dataclass(frozen=True)
class Row:
    """One record.

    Attributes
    ----------
    bench, name : str
        Kind of measurement, and in words what was measured.
    seconds : float
        Measured: of the prefill, the scoring, one decoded token, or to the first token.
    predict : callable
        The same, predicted by what is fitted.
    fit : bool
        Whether fitting may look at it.
    key : tuple
        What it is of, without the cards: how rows that are fitted to are found.
    cards : int
        On how many it ran.
    host_s : float
        Of a request, what its stages on the host took.
    """

    bench: str
    name: str
    seconds: float
    predict: Callable[[Fitted], float]
    fit: bool
    key: tuple[Any, ...]
    cards: int = 1
    host_s: float = 0.0

    def error(self, known: Fitted) -> float:
        """Predicted over measured, less 1."""
        return self.predict(known) / self.seconds - 1


def rows(folder: Path, card: str = CARD, before: bool = False) -> Iterator[Row]:
    """Rows of a machine's newest records of dense models in named shapes, of four benches.

    Parameters
    ----------
    folder : Path
    card : str
        Name of the machine's cards.
    before : bool
        In place of the others those that are no rows since `CHOSEN_SINCE`, to be shown apart.
    """
    for bench, read in _READ.items():
        for record in newest_warm(folder / f"{bench}.jsonl", _asked):
            left = 0 if record["date"] < LEFT_SINCE else FIRST_LAYERS
            config = {"left": left, "card": card, **record["config"]}
            config["one_by_one"] = record["date"] < GRAPHS_SINCE.get(cards_of(config)[1], "")
            config["launch_us"] = record["metrics"].get("launch_us")
            several = max(cards_of(config)) > 1
            if several and record["date"] < TURNS_SINCE:
                continue
            if before != (_draft_together(bench, config) and record["date"] < CHOSEN_SINCE):
                continue
            found = read(config, record["metrics"])
            if found is not None and (found.fit or not _waited_for_the_host(bench, config, record["metrics"])):
                yield found if card == CARD and not several else replace(found, fit=False)


def _by_auto(c: Mapping[str, Any]) -> bool:
    return AUTO in (c.get("asked_math"), c.get("drafter_asked_math"))


def _asked(record: Mapping[str, Any]) -> str:
    """What a record is known by, of ``auto`` without what that came to."""
    config = record["config"]
    left_out = RESOLVED if _by_auto(config) else ()
    return key_of({**record, "config": {name: value for name, value in config.items() if name not in left_out}})


def _draft_together(bench: str, c: Mapping[str, Any]) -> bool:
    """Whether several cards read for a drafter."""
    return bench in ("drafter", "ttft") and cards_of(c)[0] > 1


def _waited_for_the_host(bench: str, c: Mapping[str, Any], m: Mapping[str, Any]) -> bool:
    """Whether a target on one card read a short run launch by launch."""
    if bench not in ("prefill", "ttft") or cards_of(c)[1] > 1 or not c["one_by_one"]:
        return False
    return bool(m.get("kept_tokens", c["prompt_tokens"]) <= MOST)


def _predictor(known: Fitted, c: Mapping[str, Any], cards: tuple[int, int] = (1, 1)) -> Predictor:
    """Of a record's card, and so many of them for drafter and target."""
    return Predictor(find_card(c["card"]), known.by_host(c["launch_us"]), c["path"], *cards, c["one_by_one"])


def _on(*cards: int) -> str:
    """For names of rows; empty of one card."""
    return f", {max(cards)} cards" if max(cards) > 1 else ""


@cache
def _weights(name: str, file_type: str | None = None) -> Weights | None:
    """Of ``qwen3.6-27b-q4_k_m.synthetic`` or, with the type apart, ``qwen3.6-27b``; None of other models."""
    if file_type is None:
        name, _, file_type = name.removesuffix(".synthetic").rpartition("-")
    try:
        found = Weights.of_shape(name, file_type)
    except ConfigError:
        return None
    return None if found.config.experts else found


def _target(model: Weights, c: Mapping[str, Any]) -> Weights | None:
    """A target in the arithmetic of its record; None where that is not predicted."""
    math, _ = maths_of(c)
    if math == Math.BF16:
        return model
    if math not in (Math.INT8, kept_rounded(Math.INT8)) or "asked_math" in c:
        return None
    if "kept_bytes" in c and c["prompt_tokens"] < ROUNDED_TOKENS:
        return None  # measured in int8 to see whether the limit should be lower
    if c["left"] == 0 and c["path"] == "sm_90a":
        return None
    rounded = Rounded.of(Math.INT8, model.config, find_card(c["card"]), c["path"])
    return replace(model, rounded=replace(rounded, left=c["left"]))


def _reader(model: Weights, math: str, c: Mapping[str, Any]) -> Weights | None:
    """A drafter in the arithmetic of its record; None where that is not predicted."""
    if math == Math.BF16:
        return model
    if math == kept_rounded(Math.INT8) and _by_auto(c):
        return replace(model, rounded=Rounded.of(AUTO, model.config, find_card(c["card"]), c["path"]))
    return replace(model, rounded=Rounded(attention=True)) if math == in_attention(Math.INT8) else None


def _spoken(model: Weights) -> str:
    """What is in int8, for names of rows; empty for nothing."""
    if model.rounded.products:
        return " in int8" if model.rounded.left else " in int8, all layers"
    return f" {in_attention(Math.INT8)}" if model.rounded.attention else ""


def _kept(c: Mapping[str, Any]) -> str:
    """Of weights that stay rounded, for names of rows; they are predicted as others in int8 are."""
    return ", kept" if "kept_bytes" in c else ""


def _prefill(c: Mapping[str, Any], m: Mapping[str, Any]) -> Row | None:
    model = _weights(c["shape"] or "", c["type"] or "")
    if model is None or c["engine"] != "sp" or c.get("asked_density") is not None:
        return None
    target = _target(share_of(model, cards_of(c)[0]), c)
    if target is None:
        return None
    n, path, plain, cards = c["prompt_tokens"], c["path"], c["type"] == "q4_k_m", cards_of(c)[0]
    if target.rounded.products:
        fit = plain and (c["shape"], n) == (FIT_SHAPES[0], EIGHT_TOKENS) and "kept_bytes" in c
        key = "prefill int8", path
    else:
        fit, key = plain and path == "sm_90a" and _may_fit(c["shape"], n), ("prefill", n)
    return Row(
        "prefill", f"{c['shape']} {c['type']}{_spoken(target)}{_kept(c)}, {n:,} tokens, {path}{_on(cards)}",
        n / m["tok_s"], lambda known: _predictor(known, c, (1, cards)).prefill_s(target, n),
        fit, key, cards,
    )  # fmt: skip


def _decode(c: Mapping[str, Any], m: Mapping[str, Any]) -> Row | None:
    model = _weights(c["shape"] or "", c["type"] or "")
    if model is None or c["engine"] != "sp" or c["method"] != "greedy":
        return None
    model = share_of(model, cards_of(c)[0])
    context, path, cards = c["context"], c["path"], cards_of(c)[0]
    plain = (c["shape"], c["type"], path, context) == (FIT_SHAPES[0], "q4_k_m", "sm_90a", 0)
    return Row(
        "decode", f"{c['shape']} {c['type']} after {context:,} tokens, {path}{_on(cards)}", 1 / m["tok_s"],
        lambda known: _predictor(known, c, (1, cards)).step_s(model, context, c["kv"].partition(" ")[0]),
        plain, ("decode", context), cards,
    )  # fmt: skip


def _drafter(c: Mapping[str, Any], m: Mapping[str, Any]) -> Row | None:
    shape, _, rest = c["model"].partition(" ")
    model = _weights(shape, rest.partition(" ")[0])
    if model is None:
        return None
    drafter = _reader(model, maths_of(c)[0], c)
    if drafter is None:
        return None
    plain = c["path"] == "sm_90a" and c["density"] == 0.05 and not drafter.rounded.attention
    n, path, density = c["prompt_tokens"], c["path"], m["density"] if c["attention"] == "flashprefill" else None
    cards = cards_of(c)
    return Row(
        "drafter", f"{shape}{_spoken(drafter)}, {n:,} tokens at density {m['density']:.2f}, {path}{_on(*cards)}",
        m["score_s"], lambda known: _predictor(known, c, cards).score_s(drafter, n, density),
        _may_fit(shape, n) and plain, ("drafter", n, c["density"]), max(cards),
    )  # fmt: skip


def _ttft(c: Mapping[str, Any], m: Mapping[str, Any]) -> Row | None:
    """Within a budget of memory too; of scorers those that a drafter reads for."""
    model = _weights(c["target"])
    if model is None or m["ttft_s"] is None or c["scorer"] not in (None, "tail"):
        return None
    target = _target(share_of(model, cards_of(c)[1]), c)
    if target is None:
        return None
    n, path, cards = m["prompt_tokens"], c["path"], cards_of(c)
    name = c["target"].removesuffix(".synthetic")
    shape, told = name.rpartition("-")[0], f"{name}{_spoken(target)}{_kept(c)}"
    in_bf16 = not target.rounded.products
    if c["drafter"] is None:
        return Row(
            "ttft", f"{told}, {n:,} tokens in full, {path}{_on(*cards)}", m["ttft_s"],
            lambda known: _predictor(known, c, cards).full_s(target, n),
            _may_fit(shape, n) and in_bf16, ("full", n), max(cards),
        )  # fmt: skip
    small, density = _weights(c["drafter"]), m["density"]
    drafter = None if small is None else _reader(small, maths_of(c)[1], c)
    if drafter is None:
        return None
    if drafter.rounded.attention:
        told += f", drafter{_spoken(drafter)}"
    in_bf16 = in_bf16 and not drafter.rounded.attention
    plain = (c["keep_ratio"], c["density"], c["vram"]) == (0.05, 0.05, None)
    kept = m["kept_tokens"] / n
    within = f", --vram {c['vram']}" if c["vram"] else ""
    return Row(
        "ttft",
        f"{told}, {n:,} tokens, keep {c['keep_ratio']:g}, density {density:.2f}{within}, {path}{_on(*cards)}",
        m["ttft_s"], lambda known: _predictor(known, c, cards).compressed(target, drafter, n, kept, density).ttft_s,
        _may_fit(shape, n) and plain and in_bf16, ("ttft", n), max(cards),
        m["ttft_s"] - m["stages"].get("score", 0.0) - m["stages"]["target prefill"],
    )  # fmt: skip


def _may_fit(shape: str, tokens: int) -> bool:
    return shape in FIT_SHAPES and tokens in FIT_TOKENS


_READ: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Row | None]] = {
    "prefill": _prefill,
    "decode": _decode,
    "drafter": _drafter,
    "ttft": _ttft,
}
