"""Remarks of the report on a run's models: repacked formats, dropped bytes, positions beyond training."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import ceil, log2

import numpy as np

from sp.errors import SpWarning, join_names, plain
from sp.models import Draft, Gaps, unscalable
from sp.models.run.chunked import chunk_tokens
from sp.models.run.layer_major import LAYER_MAJOR_CHUNK, chunk_on_device
from sp.models.run.replay import MOST_ALONE, replay_refusal, short
from sp.ops.attention.attention import BYTE_QUERIES
from sp.ops.byte_rows.rows import ROUNDED_TOKENS
from sp.ops.rope import LinearScaling, YarnScaling
from sp.prompt import TokenisedPrompt
from sp.quant import Math
from sp.scoring import SCORERS, Scorer
from sp.scoring.attention.heads import LAST_QUERIES, CalibratedScorer, retrieval_of
from sp.scoring.base import AutoScorer, ModelFreeScorer, ReadingScorer
from sp.scoring.trained.late_interaction import LateInteractionScorer
from sp.session.compress import positions_for
from sp.session.loaded import Loaded
from sp.session.options import RunOptions
from sp.session.result import Scored
from sp.trace import Stage


def report_facts(
    target: Loaded,
    drafter: Loaded | None,
    draft: Draft | None,
    options: RunOptions,
    scored: Scored | None,
    stages: Sequence[Stage],
    others: Mapping[str, object],
    selects: bool = False,
) -> dict[str, object]:
    """Return facts of a run's trace by name, without empty ones; `selects`: tokens of the prompt were left out."""
    facts = {
        "drafter": [f"{plain(drafter.path.stem)}, {drafter.chosen}"] if drafter and drafter.chosen else [],
        "repacked": repacked_lines(target, drafter, draft),
        "math": precision_lines(target, drafter, options.scorer, stages, options.state_gaps),
        "positions": [
            *placement_lines(target, options, selects),
            *position_lines(target, drafter, options.scorer, scored),
        ],
        "retrieval": [] if scored is None else retrieval_lines(drafter, options.scorer, scored),
        **others,
    }
    return {name: fact for name, fact in facts.items() if fact}


def repacked_lines(target: Loaded, drafter: Loaded | None, draft: Draft | None) -> list[str]:
    """Return a line for each tensor that a model holds in another format than its file; see `sp.quant.repack`."""
    formats = {"target": target.model.repacked}
    formats |= {"drafter": drafter.model.repacked} if drafter else {}
    formats |= {"draft": draft.repacked} if draft else {}
    return [f"{name}: {change}" for name, changes in formats.items() for change in changes]


def precision_lines(
    target: Loaded, drafter: Loaded | None, scorer: Scorer, stages: Sequence[Stage], gaps: Gaps = "compact"
) -> list[str]:
    """Return a line on the matmul precision of each model's prefill; none for BF16 by default.

    Tokens count as int8 or fp8 in chunks that are long enough; they are not reported where the chunks are unknown, as
    across gaps.
    """
    counts = {stage.name: stage.tokens for stage in stages}
    together = chunk_tokens(target.model.device, target.model.arithmetic.precision)
    readings = [("target", target, counts.get("target prefill") if gaps == "compact" else None, together)]
    if drafter is not None:
        drafts = isinstance(scorer, ReadingScorer) and scorer.drafts
        on_device = drafter.model.device == "cuda"
        together = chunk_on_device(drafter.model.config) if on_device else LAYER_MAJOR_CHUNK["cpu"]
        readings.append(("drafter", drafter, counts.get("draft", counts.get("score")) if drafts else None, together))
    lines = []
    for role, loaded, tokens, chunk in readings:
        arithmetic, line = loaded.model.arithmetic, f"{role}: {loaded.model.arithmetic}"
        if arithmetic.weights and tokens:
            line += f", {rounded_tokens(tokens, chunk):,} of {tokens:,} tokens"
        if arithmetic.attention is not Math.BF16:
            line += f"; attention of runs from {BYTE_QUERIES:,} tokens on"
        lines += [line] if arithmetic.asked != Math.BF16 else []  # the default needs no remark
    return lines


def rounded_tokens(tokens: int, chunk: int) -> int:
    """Return how many tokens of a prompt go through layers in chunks that are long enough for int8 or fp8.

    >>> rounded_tokens(2500, 1024), rounded_tokens(2500, 2048), rounded_tokens(2600, 2048), rounded_tokens(398, 1024)
    (2048, 2048, 2600, 0)
    """
    whole, rest = tokens - tokens % chunk, tokens % chunk  # full chunks, and the last one
    return (whole if chunk >= ROUNDED_TOKENS else 0) + (rest if rest >= ROUNDED_TOKENS else 0)


def retrieval_lines(drafter: Loaded | None, scorer: Scorer, scored: Scored | None) -> list[str]:
    """Return lines on the drafter's layers that a calibrated scorer uses, and on queries where no question is known."""
    if drafter is None or not scorer.retrieves or not drafter.model.config.attention_layers:
        return []
    config, lines = drafter.model.config, list[str]()
    if isinstance(scorer, AutoScorer):
        scorer = scorer.scorer_for(config)
        lines.append(f"drafter: scorer auto is {SCORERS.name_of(scorer)} for {plain(drafter.path.name, 60)}")
    if isinstance(scorer, LateInteractionScorer):
        head = scorer.head(config)
        lines.append(
            f"drafter: a trained head of rank {head.rank} on layers {', '.join(map(str, sorted(head.key)))} of "
            f"{config.layers}; {head.depth} are run"
        )
    if isinstance(scorer, CalibratedScorer):
        lines.append(calibrated_line(drafter))
    if scored is not None and not scored.drafted.mask("question").any():
        lines.append(f"drafter: the prompt names no question, so its last {LAST_QUERIES} tokens serve as queries")
    return lines


def launch_lines(drafter: Loaded, tokens: int) -> list[str]:
    """Return a line if the launches of a prompt of few `tokens` are prepared layer by layer instead of replayed.

    Preparing them takes the host longer than the device needs to run them; see `sp.models.run.replay`. The drafter's
    weights must be on a GPU, where a budget of memory does not leave them after scoring.
    """
    model = drafter.model
    # The host would be slower than the device.
    quick = short(model.config, tokens, MOST_ALONE[model.arithmetic.precision])
    why = replay_refusal(model) if quick else None
    return [] if why is None else [f"drafter: launches are prepared layer by layer: {why}"]


def calibrated_line(drafter: Loaded) -> str:
    """Return the line on the layers that scorer `calibrated` uses."""
    config, retrieval = drafter.model.config, retrieval_of(drafter.model.config)
    layers = f"layers {', '.join(map(str, retrieval.layers))} of {config.layers}"
    line = f"drafter: {layers} {'as calibrated' if retrieval.measured else 'by rule'}"
    line += f", {'un-rotated' if retrieval.rotary == 'none' else 'rotated'}; {retrieval.depth} are run"
    return (
        line if retrieval.measured else f"{line}; sp calibrate {plain(drafter.path.name, 60)} measures which retrieve"
    )


def placement_lines(target: Loaded, options: RunOptions, selects: bool) -> list[str]:
    """Return a line on the positions of selected tokens where sliding windows depend on them."""
    config = target.model.config
    if not selects or not config.windowed_layers:
        return []
    count = f"{len(config.windowed_layers)} of {len(config.attention_layers)}"
    windows = f"{count} layers attend in a window of {config.window_of(config.windowed_layers[0]):,} positions"
    return [f"target: selected tokens have {positions_for(options, config)} positions; {windows}"]


def position_lines(target: Loaded, drafter: Loaded | None, scorer: Scorer, scored: Scored | None) -> list[str]:
    """Return a line for each model of a run on positions that it was not trained for."""
    models = {"target": target} | ({"drafter": drafter} if drafter else {})
    role, line = "target" if scorer.reads_target else "drafter", None
    if scored is not None and not isinstance(scorer, ModelFreeScorer):
        models[role] = models[role].for_prompt(len(scored.drafted))
        line = extrapolated(role, models[role], len(scored.drafted))
    lines = [f"{name}: {scaling}" for name, loaded in models.items() if (scaling := scaled(loaded))]
    return [*lines, f"{role}: {line}"] if line else lines


def dropped_lines(prompt: TokenisedPrompt, scored: Scored | None = None, since: int = 0) -> list[str]:
    r"""Return a line for each vocabulary of a run on the bytes of a prompt for which it has no token.

    >>> from sp.prompt import Prompt
    >>> prompt = TokenisedPrompt(Prompt("a\x04b\x04"), np.arange(2), np.array([[0, 1], [1, 4]]), np.array([1, 3]))
    >>> dropped_lines(prompt)
    ['target: 2 bytes left out, which its vocabulary has no token for (0x04)']
    """
    by_role = {"target": prompt}
    if scored is not None and not np.array_equal(scored.drafted.dropped, prompt.dropped):
        by_role["drafter"] = scored.drafted
    lines, raw = (
        [],
        prompt.prompt.text.encode() if any(len(tokenised.dropped) for tokenised in by_role.values()) else b"",
    )
    for role, tokenised in by_role.items():
        places = tokenised.dropped[tokenised.dropped >= since]  # bytes of earlier turns were reported then
        which = join_names(f"{byte:#04x}" for byte in sorted({raw[place] for place in places.tolist()}))
        count = f"{len(places):,} byte{'s' * (len(places) != 1)}"
        lines += [f"{role}: {count} left out, which its vocabulary has no token for ({which})"] if len(places) else []
    return lines


def scaled(loaded: Loaded) -> str | None:
    """Return how RoPE is scaled and the reason; None if it is as the model was trained."""
    scaling = loaded.model.config.rope.scaling
    reason = "as requested" if loaded.requested_rope else "as the prompt needs" if loaded.needed else "as its file says"
    if isinstance(scaling, YarnScaling):
        return f"RoPE scaled by YaRN, {scaling.factor:g} x {scaling.original_context:,} positions, {reason}"
    if isinstance(scaling, LinearScaling):
        return f"RoPE scaled linearly by {scaling.factor:g}, {reason}"
    if scaling is not None:
        return f"RoPE scaled by a tensor, {reason}"
    return "RoPE not scaled, as requested" if loaded.requested_rope else None


def extrapolated(role: str, loaded: Loaded, tokens: int) -> str | None:
    """Return a line if a prompt of so many tokens exceeds a model's trained positions, naming the option that helps.

    `loaded` is the model as it reads the prompt, see `Loaded.for_prompt`.
    """
    window = loaded.trained
    if window is None or tokens <= window:
        return None
    line = f"trained to {window:,} positions, the prompt has {tokens:,}: {tokens / window:.1f} x as far, extrapolated"
    config, requested = loaded.model.config, loaded.requested_rope is not None
    if not requested and (reason := unscalable(config)) is not None:
        line += f", for {reason}"
        if not config.delta_layers:
            return line  # the file's own scaling, which no option extends
    # Positions of the training, to which YaRN factors are relative.
    scaling, original = config.rope.scaling, float(window)
    if isinstance(scaling, YarnScaling):
        original = scaling.original_context
    elif requested and isinstance(scaling, LinearScaling):
        original = window / scaling.factor  # positions before the scaling that the file or the user set
    return f"{line}; --{role}-rope yarn:{2 ** ceil(log2(tokens / original))} would scale RoPE instead"


def warn_extrapolated(role: str, loaded: Loaded, tokens: int) -> None:
    """Issue a `SpWarning` if `extrapolated` has a line; without the length, so that filters show it once."""
    if extrapolated(role, loaded, tokens) is None:
        return
    message = f"{role} {loaded.path.name} reads beyond its window of {loaded.trained:,} tokens, extrapolated"
    left_out = loaded.requested_rope is not None and role == "drafter" and not loaded.model.config.delta_layers
    mend = "; omit --drafter-rope, and RoPE is scaled by YaRN" if left_out else ""
    warnings.warn(message + mend, SpWarning, stacklevel=3)
