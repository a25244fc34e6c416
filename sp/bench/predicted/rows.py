"""Records of whole passes as rows: what was measured, what is predicted, and whether anything was fitted to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp.bench.record import newest
from sp.errors import ConfigError
from sp.models.inspect.known_cards import find_card
from sp.models.timing.fitted import Fitted
from sp.models.timing.predict import Predictor
from sp.models.timing.work import Weights
from sp.pipeline.measured import PLAIN_MATHS, maths_of

CARD = "h200"
"""That all records are of."""
FIT_SHAPES, FIT_TOKENS = ("qwen3.6-27b", "qwen3-0.6b"), (512, 32768)
"""Models and prompts whose rows may be fitted to; rows of any other model or length are held out, always."""


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
        Of rows that are fitted to, how they are found.
    host_s : float
        Of a request, what its stages on the host took.
    """

    bench: str
    name: str
    seconds: float
    predict: Callable[[Fitted], float]
    fit: bool
    key: tuple[Any, ...]
    host_s: float = 0.0

    def error(self, known: Fitted) -> float:
        """Predicted over measured, less 1."""
        return self.predict(known) / self.seconds - 1


def rows(folder: Path) -> Iterator[Row]:
    """Rows of a machine's newest records of dense models in named shapes on one card, of four benches."""
    for bench, read in _READ.items():
        for record in newest(folder / f"{bench}.jsonl"):
            found = None if record["config"].get("cards", 1) > 1 else read(record["config"], record["metrics"])
            if found is not None:
                yield found


def _predictor(known: Fitted, path: Any) -> Predictor:
    return Predictor(find_card(CARD), known, path)


def _weights(name: str, file_type: str | None = None) -> Weights | None:
    """Of ``qwen3.6-27b-q4_k_m.synthetic`` or, with the type apart, ``qwen3.6-27b``; None of other models."""
    if file_type is None:
        name, _, file_type = name.removesuffix(".synthetic").rpartition("-")
    try:
        found = Weights.of_shape(name, file_type)
    except ConfigError:
        return None
    return None if found.config.experts else found


def _prefill(c: Mapping[str, Any], m: Mapping[str, Any]) -> Row | None:
    model = _weights(c["shape"] or "", c["type"] or "")
    if model is None or c["engine"] != "sp" or c.get("asked_density") is not None or c["math"] != "bf16":
        return None
    n, path = c["prompt_tokens"], c["path"]
    plain = (c["type"], path) == ("q4_k_m", "sm_90a")
    return Row(
        "prefill", f"{c['shape']} {c['type']}, {n:,} tokens, {path}", n / m["tok_s"],
        lambda known: _predictor(known, path).prefill_s(model, n),
        _may_fit(c["shape"], n) and plain, ("prefill", n),
    )  # fmt: skip


def _decode(c: Mapping[str, Any], m: Mapping[str, Any]) -> Row | None:
    model = _weights(c["shape"] or "", c["type"] or "")
    if model is None or c["engine"] != "sp" or c["method"] != "greedy":
        return None
    context, path = c["context"], c["path"]
    plain = (c["shape"], c["type"], path, context) == (FIT_SHAPES[0], "q4_k_m", "sm_90a", 0)
    return Row(
        "decode", f"{c['shape']} {c['type']} after {context:,} tokens, {path}", 1 / m["tok_s"],
        lambda known: _predictor(known, path).step_s(model, context, c["kv"]),
        plain, ("decode", context),
    )  # fmt: skip


def _drafter(c: Mapping[str, Any], m: Mapping[str, Any]) -> Row | None:
    shape, _, rest = c["model"].partition(" ")
    model = _weights(shape, rest.partition(" ")[0])
    if model is None or maths_of(c) != PLAIN_MATHS:
        return None
    n, path, density = c["prompt_tokens"], c["path"], m["density"] if c["attention"] == "flashprefill" else None
    return Row(
        "drafter", f"{shape}, {n:,} tokens at density {m['density']:.2f}, {path}", m["score_s"],
        lambda known: _predictor(known, path).score_s(model, n, density),
        _may_fit(shape, n) and path == "sm_90a" and c["density"] == 0.05, ("drafter", n),
    )  # fmt: skip


def _ttft(c: Mapping[str, Any], m: Mapping[str, Any]) -> Row | None:
    """Within a budget of memory too; of scorers those that a drafter reads for."""
    target = _weights(c["target"])
    if target is None or maths_of(c) != PLAIN_MATHS or m["ttft_s"] is None or c["scorer"] not in (None, "tail"):
        return None
    n, path = m["prompt_tokens"], c["path"]
    name = c["target"].removesuffix(".synthetic")
    if c["drafter"] is None:
        return Row(
            "ttft", f"{name}, {n:,} tokens in full, {path}", m["ttft_s"],
            lambda known: _predictor(known, path).full_s(target, n),
            _may_fit(name.rpartition("-")[0], n), ("full", n),
        )  # fmt: skip
    drafter, density = _weights(c["drafter"]), m["density"]
    if drafter is None:
        return None
    plain = (c["keep_ratio"], c["density"], c["vram"]) == (0.05, 0.05, None)
    kept = m["kept_tokens"] / n
    within = f", --vram {c['vram']}" if c["vram"] else ""
    return Row(
        "ttft", f"{name}, {n:,} tokens, keep {c['keep_ratio']:g}, density {density:.2f}{within}, {path}", m["ttft_s"],
        lambda known: _predictor(known, path).compressed(target, drafter, n, kept, density).ttft_s,
        _may_fit(name.rpartition("-")[0], n) and plain, ("ttft", n),
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
