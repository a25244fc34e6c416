"""Verdict if a model file runs on a GPU, or on which one, and a plan of the memory that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.keywords import recorded
from sp.models.config import ModelConfig
from sp.models.file.rope_keys import describe_window, needed_scaling
from sp.models.layer.cold_experts import describe_cold
from sp.models.run.chunked import CHUNK
from sp.models.synthetic.shapes import find_shape, list_shapes
from sp.planning.gpus import (
    ANSWER,
    GPUS,
    KEEP,
    LARGEST_DRAFTER,
    REPORTED_LENGTHS,
    Drafter,
    MemoryMode,
    best,
    caches,
    drafters_for,
    longest,
    memory_modes,
    need,
    room,
    scoring_mode,
    smallest_gpu,
    weights_bytes,
)
from sp.planning.memory import ColdPlacement, cold_layers
from sp.planning.subject import Depth, Subject, read_subject, whole

COMMON = ("q8_0", "q6_k", "q5_k", "q4_k_m", "iq4_xs", "q3_k")
"""File types that publishers of most models offer; the device stores those of fewer bits as Q8_0."""
USUAL = "q4_k_m"
NEAR = 1.25  # a proposed file may be larger than the one it replaces by this factor


@dataclass(frozen=True)
class RunVerdict:
    """Verdict if a model file runs. `role`: its assumed use; a small model is a drafter that scores prompts for a
    larger one."""

    runs: Literal["yes", "with", "no"]
    gpu: int | None = None  # GiB of the GPU; None if the verdict is independent of it
    tokens: int | None = None  # length of prompt and answer
    options: tuple[str, ...] = ()  # options of `sp run` that it needs
    why: str | None = None  # why it does not run
    instead: str | None = None  # proposal to use in its place
    role: Literal["target", "drafter"] = "target"
    together: int = 1  # number of GPUs of that size that share it
    window: int | None = None  # window of a drafter, if it is shorter than `tokens`
    beyond: str | None = None  # RoPE scaling by which such a drafter reads them; see `scaled_by`

    @property
    def line(self) -> str:
        """The verdict in one line.

        >>> RunVerdict("with", 24, 131072, ("--kv q4_0",)).line
        'yes, with --kv q4_0: 128K tokens on a GPU of 24 GB'
        >>> RunVerdict("yes", 12, 131072, role="drafter", window=8192, beyond="YaRN x16").line
        'yes, as a drafter: 8K tokens, or 128K with YaRN x16, on a GPU of 12 GB'
        """
        if self.runs == "no":
            return f"no: {self.why}"
        on = "a GPU" if self.together == 1 else f"each of {self.together} GPUs"
        tokens = self.tokens or 0
        length = f"{format_tokens(tokens)} tokens"
        if self.window is not None:
            length = f"{format_tokens(self.window)} tokens, or {format_tokens(tokens)} with {self.beyond},"
        where = "" if self.gpu is None else f": {length} on {on} of {self.gpu} GB"
        qualifiers = ", as a drafter" if self.role == "drafter" else ""
        qualifiers += f", with {' '.join(self.options)}" if self.options else ""
        return f"yes{qualifiers}{where}"


def format_tokens(tokens: int) -> str:
    """Format a length in binary thousands if it is a multiple of them, else as a plain number."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def scaled_by(config: ModelConfig, tokens: int) -> str:
    """Return the RoPE scaling by which a drafter reads `tokens` beyond its window: automatic YaRN, or an option for it.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> [scaled_by(find_shape(name).config, 1 << 20) for name in ("qwen3-0.6b", "qwen3.6-27b")]
    ['YaRN x32', '--drafter-rope yarn:4']
    """
    if (scaling := needed_scaling(config, tokens)) is not None:
        return f"YaRN x{scaling.factor:g}"
    return f"--drafter-rope yarn:{1 << max(-(-tokens // config.context) - 1, 1).bit_length()}"


def proposed_drafter(target: Subject) -> Drafter | None:
    """Propose a published model to score for a target; None if the target is of a drafter's size, or none is
    smaller."""
    if target.config is None or target.parameters <= LARGEST_DRAFTER:
        return None
    return next(iter(drafters_for(target.config, target.parameters)), None)


def judge(target: Subject, drafter: Drafter | None, gpu: int | None, tokens: int, keep: float = KEEP) -> RunVerdict:
    """Judge if a target runs, with a drafter or (None) with full prefill.

    `gpu`: GiB of the GPU, by default the smallest of `GPUS` that is enough; `tokens`: length of prompt and answer;
    `keep`: share of the prompt that the target reads.
    """
    if target.stopped is not None:
        return RunVerdict("no", why=target.stopped.line, instead=_replacement(target, gpu, tokens))
    config, weights = target.config, target.weights
    if not target.on_device or config is None or weights is None:
        return RunVerdict("with", options=("--device cpu",))
    role: Literal["target", "drafter"] = (
        "drafter" if drafter is None and target.parameters <= LARGEST_DRAFTER else "target"
    )
    if role == "drafter":
        candidates = [] if target.scoring_model is None else [scoring_mode(target.scoring_model, tokens)]
    else:
        candidates = list(memory_modes(config, weights, drafter, tokens, keep, target.stacks, alone=target.alone))
    if not candidates:
        length = format_tokens(tokens)
        why = f"{length} tokens are more than the window of {config.context}, and no drafter compresses them"
        return RunVerdict("no", gpu, tokens, why=why)
    where = gpu or smallest_gpu(candidates)
    mode = best(candidates, where) if where else None
    if where is None or mode is None:
        least, most = min(candidate.nbytes for candidate in candidates), gpu or GPUS[-1]
        shared = "" if target.alone else f" on each of {target.gpus} GPUs"
        demand = f"{format_tokens(tokens)} tokens take {least / 2**30:.1f} GiB{shared}"
        why = f"{demand}, and a GPU of {most} GB has {room(most) >> 30}"
        instead = _instead_of(target, drafter, most, tokens, keep) if role == "target" else None
        return RunVerdict("no", most, tokens, why=why, instead=instead, role=role, together=target.gpus)
    options = mode.options(where)
    window = config.context if role == "drafter" and config.context < tokens else None
    return RunVerdict(
        "with" if options else "yes",
        where,
        tokens,
        options,
        role=role,
        together=target.gpus,
        window=window,
        beyond=None if window is None else scaled_by(config, tokens),
    )


def _instead_of(target: Subject, drafter: Drafter | None, gpu: int, tokens: int, keep: float) -> str | None:
    """Propose alternatives that fit in the memory: a shorter prompt, the same model in fewer bits, or a smaller
    model."""
    assert target.config is not None
    assert target.weights is not None
    longest_fit = longest(target.config, target.weights, drafter, gpu, keep, target.stacks, target.alone)
    shorter = [f"a prompt of up to {format_tokens(longest_fit[0])}"] if longest_fit and longest_fit[0] < tokens else []
    others = [*shorter, *_narrower(target, drafter, gpu, tokens, keep)]
    return ", or ".join(others or (_published_for(gpu, tokens) if target.alone else ["more GPUs"])) or None


def _replacement(target: Subject, gpu: int | None, tokens: int) -> str | None:
    """Propose a file in place of one that does not run; None if the message of its hindrance already does."""
    if target.draft or not target.names:
        return None
    if target.config is None:
        smallest = min(size for *_, size in _published())
        return next(iter(_published_for(gpu, tokens, max(int(NEAR * target.nbytes), smallest))), None)
    undecoded = any(hindrance.stops and hindrance.of_format for hindrance in target.hindrances)
    return f"the same model as {USUAL.upper()}" if undecoded else None


def _narrower(target: Subject, drafter: Drafter | None, gpu: int, tokens: int, keep: float) -> list[str]:
    """Propose the same model in the common file type with the most bits that fits."""
    sizes = {name: target.weights_as(name) for name in COMMON}
    assert target.config is not None
    for name, nbytes in sorted(sizes.items(), key=lambda item: -(item[1] or 0)):
        if nbytes is None:
            continue
        modes = list(memory_modes(target.config, nbytes, drafter, tokens, keep, alone=target.alone))
        if best(modes, gpu):
            on = "the GPU" if target.alone else "each GPU"
            return [f"the same model as {name.upper()} ({nbytes / 2**30:.1f} GiB on {on})"]
    return []


def _published_for(gpu: int | None, tokens: int, most: int | None = None) -> list[str]:
    """Propose the largest published model that runs on a GPU, with a file of at most `most` bytes."""
    for name, nbytes, size in _published():
        shape = find_shape(name)
        config, elements = shape.config, sum(tensor.size for tensor in shape.tensors())
        drafter = next(iter(drafters_for(config, elements)), None) if elements > LARGEST_DRAFTER else None
        fits = gpu is None or best(list(memory_modes(config, nbytes, drafter, tokens)), gpu)
        if fits and (most is None or size <= most):
            return [f"a file of {name} as {USUAL.upper()} ({size / 1e9:.1f} GB)"]
    return []


@cache
def _published() -> tuple[tuple[str, int, int], ...]:
    """List (name, bytes on the device, bytes of the file) of all published shapes, the largest first."""
    shapes = []
    for name in list_shapes():
        shape = find_shape(name)
        if not name.startswith("tiny-"):
            plan = shape.plan(USUAL)
            device_bytes = weights_bytes(shape.config, {tensor: fmt for tensor, _, fmt in plan})
            shapes.append((name, device_bytes, sum(fmt.nbytes(size) for _, size, fmt in plan)))
    return tuple(sorted(shapes, key=lambda row: -row[1]))


ASK = '--prompt-file TEXT.txt --question "..."'


@dataclass(frozen=True)
class ModelPlan:
    """A verdict with the models and assumptions that it is based on."""

    target: Subject
    drafter: Drafter | None
    scorer: Subject | None  # the drafter's file, if one was given; else the drafter is a published shape
    gpu: int | None  # GiB, as requested
    tokens: int  # requested length of prompt and answer
    verdict: RunVerdict
    keep: float  # share of the prompt that the target reads after the drafter has scored it
    lengths: tuple[int, ...]  # lengths of prompt and answer for which memory is reported

    @property
    def sizes(self) -> tuple[ModelConfig, int] | None:
        """The target's configuration and bytes on the device; None if no GPU runs it."""
        config_weights = self.target.config, self.target.weights
        if self.target.stopped or not self.target.on_device or config_weights[0] is None or config_weights[1] is None:
            return None
        return config_weights[0], config_weights[1]

    @property
    def vocabulary(self) -> str | None:
        """The drafter's vocabulary compared with the target's: ``same``, ``as large`` (for shapes, which have no words)
        or ``other``; then scores are aligned by bytes of the text."""
        if self.drafter is None or self.target.vocabulary is None:
            return None
        if self.scorer is not None:
            own = self.scorer.vocabulary
            return "same" if own is not None and own.sha256 == self.target.vocabulary.sha256 else "other"
        return "as large" if find_shape(self.drafter.name).text_tokens == self.target.text_tokens else "other"

    @property
    def command(self) -> str | None:
        """The command that runs the model; None if it does not run."""
        if self.target.draft and not self.target.refused:
            return f"sp run --target MODEL.gguf --decode ddtree --speculator {_name(self.target)}"
        if self.verdict.runs == "no" or self.target.shape is not None:
            return None
        options = "".join(f" {option}" for option in (*self.verdict.options, *self._uncompared()))
        if self.verdict.role == "drafter":
            return f"sp run --target MODEL.gguf --drafter {_name(self.target)}{options} {ASK}"
        other = "DRAFTER.gguf" if self.scorer is None else _name(self.scorer)
        return f"sp run --target {_name(self.target)} --drafter {other}{options} {ASK}"

    def _uncompared(self) -> tuple[str, ...]:
        """Return the option that omits the full prefill for comparison, if the GPU has no room for it."""
        gpu = self.verdict.gpu
        if self.drafter is None or self.sizes is None or gpu is None or self.tokens > self.sizes[0].context:
            return ()
        mode = best(self._modes(self.drafter), gpu)
        full = [candidate for candidate in self._modes(None) if mode is not None and candidate.kv == mode.kv]
        return () if best(full, gpu) else ("--no-full",)

    def _modes(self, drafter: Drafter | None) -> list[MemoryMode]:
        if self.sizes is None:
            return []
        alone = self.target.alone
        return list(memory_modes(*self.sizes, drafter, self.tokens, self.keep, self.target.stacks, alone=alone))

    @property
    def cold(self) -> ColdPlacement | None:
        """Experts that are offloaded to host memory on the verdict's GPU; None if none are."""
        gpu = self.verdict.gpu
        if self.sizes is None or gpu is None or not any("--vram" in option for option in self.verdict.options):
            return None
        placement = cold_layers(*self.sizes, self.target.stacks, room(gpu))
        return placement if placement.layers else None

    def memory(self) -> Iterator[dict[str, Any]]:
        """Yield bytes on the GPU, or on each of several, by cache type and length: for a full prefill, and with the
        drafter, with both resident or by turns. For a small model also those of scoring a prompt."""
        if self.sizes is None:
            return
        (config, weights), stacks = self.sizes, self.target.stacks
        for kv in caches(config):
            for tokens in self.lengths:
                prompt_tokens = tokens - ANSWER
                whole = (
                    need(config, weights, None, prompt_tokens, kv, stacks=stacks) if tokens <= config.context else None
                )
                pair = self.drafter and need(config, weights, self.drafter, prompt_tokens, kv, self.keep, stacks)
                yield {
                    "kv": kv,
                    "tokens": tokens,
                    "full": whole and whole.together,
                    "full_cold": whole and whole.cold,
                    "together": pair and pair.together,
                    "by_turns": pair and pair.by_turns if self.target.alone else None,
                    "cold": pair and pair.cold,
                }
        if self.verdict.role == "drafter":
            assert self.target.scoring_model is not None
            for tokens in self.lengths:
                yield {"kv": None, "tokens": tokens, "scoring": scoring_mode(self.target.scoring_model, tokens).nbytes}

    def gpus(self) -> Iterator[dict[str, Any]]:
        """Yield for every GPU the memory mode of the requested length, and the longest of `REPORTED_LENGTHS` that fits.
        Nothing for drafters, since they use the memory that their target leaves."""
        if self.sizes is None or self.verdict.role == "drafter":
            return
        candidates = self._modes(self.drafter)
        for gpu in sorted({*GPUS, *((self.gpu,) if self.gpu else ())}):
            most = longest(*self.sizes, self.drafter, gpu, self.keep, self.target.stacks, self.target.alone)
            yield {
                "card": gpu,
                "way": _mode_facts(best(candidates, gpu), gpu),
                "longest": most and {"tokens": most[0], **(_mode_facts(most[1], gpu) or {})},
            }

    def notes(self) -> Iterator[str]:
        """Yield notes on what may surprise a user."""
        yield from (hindrance.line for hindrance in self.target.hindrances if not hindrance.stops)
        if self.drafter is not None and (window := self.drafter.config.context) < self.tokens:
            scaled = scaled_by(self.drafter.config, self.tokens)
            remedy = f"need {scaled}" if scaled.startswith("--") else f"are read with {scaled}"
            lengths = f"{format_tokens(window)} tokens; {format_tokens(self.tokens)}"
            yield f"{self.drafter.name} has a window of {lengths} {remedy}"

    def verdict_facts(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return recorded(asdict(self.verdict)) | {"options": list(self.verdict.options), "line": self.verdict.line}

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values; sizes are in bytes."""
        drafter = None if self.drafter is None else {
            "name": self.drafter.name,
            "file": None if self.scorer is None else self.scorer.path,
            "bytes": self.drafter.weights,
            "layers": self.drafter.layers,
            "layers_read": self.drafter.config.layers,
            "vocabulary": self.vocabulary,
            "window": describe_window(self.drafter.config, self.tokens - ANSWER),
        }  # fmt: skip
        small = self.target.config if self.verdict.role == "drafter" else None
        return {
            "path": self.target.path,
            "verdict": self.verdict_facts(),
            "tokens": self.tokens,
            "shared_by": self.target.gpus,
            "answer_tokens": ANSWER,
            "keep_ratio": self.keep,
            "window": self.target.config and self.target.config.context,
            "as_drafter": small and self.target.as_drafter(self.tokens - ANSWER),
            "weights_bytes": self.target.weights,
            "experts": self.cold
            and {
                "layers": len(self.cold.layers),
                "host_bytes": self.cold.host,
                "device_bytes": self.cold.device,
                "tokens_a_turn": CHUNK["cuda"],
                "line": describe_cold(self.cold.layers, len(self.target.stacks), self.cold.host),
            },
            "drafter": drafter,
            "memory": list(self.memory()),
            "cards": list(self.gpus()),
            "notes": list(self.notes()),
            "command": self.command,
        }


def make_plan(
    target: Subject,
    scorer: Subject | None,
    gpu: int | None,
    tokens: int,
    keep: float = KEEP,
    lengths: Iterable[int] = (),
) -> ModelPlan:
    """Plan for a target and a drafter, by default a published one; `lengths` are `REPORTED_LENGTHS` by default."""
    drafter = proposed_drafter(target) if scorer is None else _as_drafter(scorer)
    reported_lengths = tuple(sorted({*(lengths or REPORTED_LENGTHS), tokens}))
    return ModelPlan(
        target, drafter, scorer, gpu, tokens, judge(target, drafter, gpu, tokens, keep), keep, reported_lengths
    )


def read_file(path: str | Path, gpus: int = 1, depth: Depth = whole) -> Subject:
    """Read the header of a file or of any of its shards; see `read_subject`. GGUFError if the file is not sound."""
    with GGUFFile.open(path) as file:
        return read_subject(file, gpus, depth)


def plan_file(
    path: str | Path, drafter: str | Path | None = None, *, gpu: int | None = None, tokens: int = REPORTED_LENGTHS[-1]
) -> ModelPlan:
    """Plan from the headers of files alone.

    `path`: the target; `drafter`: by default a small published model; `gpu`: GiB, by default of the smallest GPU that
    is enough; `tokens`: length of prompt and answer, `ANSWER` of which are the answer's. GGUFError: a file is damaged;
    ModelError: the drafter cannot score."""
    return make_plan(read_file(path), None if drafter is None else read_file(drafter), gpu, tokens)


def _as_drafter(scorer: Subject) -> Drafter:
    """Return a file as a drafter; ModelError if no GPU runs it."""
    if scorer.stopped is not None:
        raise ModelError(f"{scorer.path}: {scorer.stopped.line}")
    if not scorer.on_device or scorer.scoring_model is None:
        raise ModelError(f"{scorer.path}: runs on the CPU only and takes no GPU memory; omit it")
    return scorer.scoring_model


def _mode_facts(mode: MemoryMode | None, gpu: int) -> dict[str, Any] | None:
    if mode is None:
        return None
    return {"kv": mode.kv, "by_turns": mode.by_turns, "bytes": mode.nbytes, "options": list(mode.options(gpu))}


def _name(subject: Subject) -> str:
    return quote(subject.path)
