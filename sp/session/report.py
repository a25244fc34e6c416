"""What the report says of a run's models: formats they are held in, bytes they drop, positions beyond training."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import ceil, log2

import numpy as np

from sp.errors import SpWarning, listed, plain
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
from sp.session.loaded import Loaded
from sp.session.options import RunOptions
from sp.session.result import Scored
from sp.trace import Stage


def told(
    target: Loaded,
    drafter: Loaded | None,
    draft: Draft | None,
    options: RunOptions,
    scored: Scored | None,
    stages: Sequence[Stage],
    others: Mapping[str, object],
) -> dict[str, object]:
    """Facts of a run's trace by name; those of which there is nothing to say are left out."""
    facts = {
        "drafter": [f"{plain(drafter.path.stem)}, {drafter.chosen}"] if drafter and drafter.chosen else [],
        "repacked": repacked_lines(target, drafter, draft),
        "math": precision_lines(target, drafter, options.scorer, stages, options.state_gaps),
        "positions": position_lines(target, drafter, options.scorer, scored),
        "retrieval": [] if scored is None else retrieval_lines(drafter, options.scorer, scored),
        "launches": launch_lines(drafter, scored),
        **others,
    }
    return {name: fact for name, fact in facts.items() if fact}


def repacked_lines(target: Loaded, drafter: Loaded | None, draft: Draft | None) -> list[str]:
    """What models hold in other formats than their files, a line each; see `sp.quant.repack`."""
    held = {"target": target.model.repacked}
    held |= {"drafter": drafter.model.repacked} if drafter else {}
    held |= {"draft": draft.repacked} if draft else {}
    return [f"{name}: {each}" for name, all_of in held.items() for each in all_of]


def precision_lines(
    target: Loaded, drafter: Loaded | None, scorer: Scorer, stages: Sequence[Stage], gaps: Gaps = "compact"
) -> list[str]:
    """What models multiply where they read a prompt, a line each; none of one whose products are in BF16 by default.
    The tokens that go through layers in int8 or fp8 are those of long enough chunks; where it is not known how a model
    reads, as across gaps, they are not told.
    """
    counts = {stage.name: stage.tokens for stage in stages}
    together = chunk_tokens(target.model.device, target.model.arithmetic.precision)
    found = [("target", target, counts.get("target prefill") if gaps == "compact" else None, together)]
    if drafter is not None:
        drafts = isinstance(scorer, ReadingScorer) and scorer.drafts
        on_device = drafter.model.device == "cuda"
        together = chunk_on_device(drafter.model.config) if on_device else LAYER_MAJOR_CHUNK["cpu"]
        found.append(("drafter", drafter, counts.get("draft", counts.get("score")) if drafts else None, together))
    lines = []
    for role, one, tokens, chunk in found:
        made_in, line = one.model.arithmetic, f"{role}: {one.model.arithmetic}"
        if made_in.weights and tokens:
            line += f", {rounded_tokens(tokens, chunk):,} of {tokens:,} tokens"
        if made_in.attention is not Math.BF16:
            line += f"; attention of runs from {BYTE_QUERIES:,} tokens on"
        lines += [line] if made_in.asked != Math.BF16 else []
    return lines


def rounded_tokens(tokens: int, chunk: int) -> int:
    """How many of the tokens of a prompt go through layers in chunks that are long enough for int8 or fp8.

    >>> rounded_tokens(2500, 1024), rounded_tokens(2500, 2048), rounded_tokens(2600, 2048), rounded_tokens(398, 1024)
    (2048, 2048, 2600, 0)
    """
    whole, rest = tokens - tokens % chunk, tokens % chunk
    return (whole if chunk >= ROUNDED_TOKENS else 0) + (rest if rest >= ROUNDED_TOKENS else 0)


def retrieval_lines(drafter: Loaded | None, scorer: Scorer, scored: Scored | None) -> list[str]:
    """Which layers of the drafter a scorer that asks for them went by and why, and who asked where nobody is known."""
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
        lines.append(f"drafter: the prompt names no question, so its last {LAST_QUERIES} tokens ask")
    return lines


def launch_lines(drafter: Loaded | None, scored: Scored | None) -> list[str]:
    """Why the launches of every layer of a drafter were planned anew, where a prompt is so short that this takes a host
    longer than the device needs for them; see `sp.models.run.replay`."""
    if drafter is None or scored is None or drafter.model.device == "cpu":
        return []
    model = drafter.model
    quick = short(model.config, len(scored.drafted), MOST_ALONE[model.arithmetic.precision])
    why = replay_refusal(model) if quick else None
    return [] if why is None else [f"drafter: launches are planned layer by layer: {why}"]


def calibrated_line(drafter: Loaded) -> str:
    """What `calibrated` goes by."""
    config, found = drafter.model.config, retrieval_of(drafter.model.config)
    layers = f"layers {', '.join(map(str, found.layers))} of {config.layers}"
    line = f"drafter: {layers} {'as calibrated' if found.measured else 'by rule'}"
    line += f", {'un-rotated' if found.rotary == 'none' else 'rotated'}; {found.depth} are run"
    return line if found.measured else f"{line}; sp calibrate {plain(drafter.path.name, 60)} measures which retrieve"


def position_lines(target: Loaded, drafter: Loaded | None, scorer: Scorer, scored: Scored | None) -> list[str]:
    """How the models of a run come by positions that they were not trained for, a line each."""
    models = {"target": target} | ({"drafter": drafter} if drafter else {})
    role, line = "target" if scorer.reads_target else "drafter", None
    if scored is not None and not isinstance(scorer, ModelFreeScorer):
        models[role] = models[role].for_prompt(len(scored.drafted))
        line = extrapolated(role, models[role], len(scored.drafted))
    lines = [f"{name}: {how}" for name, one in models.items() if (how := scaled(one))]
    return [*lines, f"{role}: {line}"] if line else lines


def dropped_lines(prompt: TokenisedPrompt, scored: Scored | None = None, since: int = 0) -> list[str]:
    """How many bytes of a prompt the vocabularies of a run have no token for, a line each.

    >>> from sp.prompt import Prompt
    >>> prompt = TokenisedPrompt(Prompt("a\\x04b\\x04"), np.arange(2), np.array([[0, 1], [1, 4]]), np.array([1, 3]))
    >>> dropped_lines(prompt)
    ['target: 2 bytes left out, which its vocabulary has no token for (0x04)']
    """
    by_role = {"target": prompt}
    if scored is not None and not np.array_equal(scored.drafted.dropped, prompt.dropped):
        by_role["drafter"] = scored.drafted
    lines, raw = [], prompt.prompt.text.encode() if any(len(one.dropped) for one in by_role.values()) else b""
    for role, one in by_role.items():
        places = one.dropped[one.dropped >= since]
        which = listed(f"{byte:#04x}" for byte in sorted({raw[place] for place in places.tolist()}))
        count = f"{len(places):,} byte{'s' * (len(places) != 1)}"
        lines += [f"{role}: {count} left out, which its vocabulary has no token for ({which})"] if len(places) else []
    return lines


def scaled(loaded: Loaded) -> str | None:
    """How RoPE is scaled, and who wants it so; None where it is as the model was trained."""
    scaling = loaded.model.config.rope.scaling
    who = "as was asked" if loaded.asked else "as the prompt needs" if loaded.needed else "as its file says"
    if isinstance(scaling, YarnScaling):
        return f"RoPE scaled by YaRN, {scaling.factor:g} x {scaling.original_context:,} positions, {who}"
    if isinstance(scaling, LinearScaling):
        return f"RoPE scaled linearly by {scaling.factor:g}, {who}"
    if scaling is not None:
        return f"RoPE scaled by a tensor, {who}"
    return "RoPE not scaled, as was asked" if loaded.asked else None


def extrapolated(role: str, loaded: Loaded, tokens: int) -> str | None:
    """That a reader of so many tokens leaves the positions it was trained for, and which option is there for it.
    `loaded` is the model as it reads them, see `Loaded.for_prompt`.
    """
    window = loaded.trained
    if window is None or tokens <= window:
        return None
    line = f"trained to {window:,} positions, the prompt has {tokens:,}: {tokens / window:.1f} x as far, extrapolated"
    config, asked = loaded.model.config, loaded.asked is not None
    if not asked and (reason := unscalable(config)) is not None:
        line += f", for {reason}"
        if not config.delta_layers:
            return line  # the file's own scaling, which no option goes on from
    scaling, original = config.rope.scaling, float(window)
    if isinstance(scaling, YarnScaling):
        original = scaling.original_context
    elif asked and isinstance(scaling, LinearScaling):
        original = window / scaling.factor
    return f"{line}; --{role}-rope yarn:{2 ** ceil(log2(tokens / original))} would scale RoPE instead"


def warn_extrapolated(role: str, loaded: Loaded, tokens: int) -> None:
    """A `SpWarning` where `extrapolated` has something to say, without the length: filters then show it once."""
    if extrapolated(role, loaded, tokens) is None:
        return
    how = f"{role} {loaded.path.name} reads beyond its window of {loaded.trained:,} tokens, extrapolated"
    left_out = loaded.asked is not None and role == "drafter" and not loaded.model.config.delta_layers
    mend = "; leave --drafter-rope out, and RoPE is scaled by YaRN" if left_out else ""
    warnings.warn(how + mend, SpWarning, stacklevel=3)
