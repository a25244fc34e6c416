"""Will it run? A verdict on a model file, for a GPU or the smallest that does, and a plan of what it takes."""

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
    SPOKEN,
    Drafter,
    MemoryMode,
    best,
    caches,
    drafters_for,
    longest,
    need,
    room,
    scoring_way,
    smallest_gpu,
    ways,
    weights_bytes,
)
from sp.planning.memory import ColdPlacement, cold_layers
from sp.planning.subject import Depth, Subject, read_subject, whole

COMMON = ("q8_0", "q6_k", "q5_k", "q4_k_m", "iq4_xs", "q3_k")
"""File types that publishers of most models offer; those of fewer bits are held as Q8_0."""
USUAL = "q4_k_m"
NEAR = 1.25  # how much larger than a file that cannot run the one may be that is proposed in its place


@dataclass(frozen=True)
class RunVerdict:
    """Tells if a model file runs. `role`: what it is judged as: a small model is one that scores prompts for a larger
    one."""

    runs: Literal["yes", "with", "no"]
    gpu: int | None = None  # GiB of the GPU that it is about; None where no GPU matters
    tokens: int | None = None  # of prompt and answer
    options: tuple[str, ...] = ()  # of `sp run`, with which it runs
    why: str | None = None  # why it does not
    instead: str | None = None  # what to take in its place
    role: Literal["target", "drafter"] = "target"
    together: int = 1  # GPUs of that size that share it
    window: int | None = None  # of a drafter whose window ends before `tokens`
    beyond: str | None = None  # what such a drafter reads them with; see `scaled_by`

    @property
    def line(self) -> str:
        """The verdict as one line.

        >>> RunVerdict("with", 24, 131072, ("--kv q4_0",)).line
        'yes, with --kv q4_0: 128K tokens on a GPU of 24 GB'
        >>> RunVerdict("yes", 12, 131072, role="drafter", window=8192, beyond="YaRN x16").line
        'yes, as a drafter: 8K tokens, or 128K with YaRN x16, on a GPU of 12 GB'
        """
        if self.runs == "no":
            return f"no: {self.why}"
        on = "a GPU" if self.together == 1 else f"each of {self.together} GPUs"
        tokens = self.tokens or 0
        length = f"{spoken(tokens)} tokens"
        if self.window is not None:
            length = f"{spoken(self.window)} tokens, or {spoken(tokens)} with {self.beyond},"
        where = "" if self.gpu is None else f": {length} on {on} of {self.gpu} GB"
        qualifiers = ", as a drafter" if self.role == "drafter" else ""
        qualifiers += f", with {' '.join(self.options)}" if self.options else ""
        return f"yes{qualifiers}{where}"


def spoken(tokens: int) -> str:
    """A length in binary thousands, or as it is."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def scaled_by(config: ModelConfig, tokens: int) -> str:
    """Return what lets a drafter read `tokens` beyond its window: YaRN by itself, or an option where it takes none.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> [scaled_by(find_shape(name).config, 1 << 20) for name in ("qwen3-0.6b", "qwen3.6-27b")]
    ['YaRN x32', '--drafter-rope yarn:4']
    """
    if (scaling := needed_scaling(config, tokens)) is not None:
        return f"YaRN x{scaling.factor:g}"
    return f"--drafter-rope yarn:{1 << max(-(-tokens // config.context) - 1, 1).bit_length()}"


def proposed_drafter(target: Subject) -> Drafter | None:
    """The published model to score for a target; None where none is small enough, or it is of that size itself."""
    if target.config is None or target.parameters <= LARGEST_DRAFTER:
        return None
    return next(iter(drafters_for(target.config, target.parameters)), None)


def judge(target: Subject, drafter: Drafter | None, gpu: int | None, tokens: int, keep: float = KEEP) -> RunVerdict:
    """The verdict, with who scores prompts (None: they are read in full), on a GPU of so many GiB, or the smallest of
    `GPUS` that does, for `tokens` of prompt and answer, of which a share `keep` is read."""
    if target.stopped is not None:
        return RunVerdict("no", why=target.stopped.line, instead=_replacement(target, gpu, tokens))
    config, weights = target.config, target.weights
    if not target.on_device or config is None or weights is None:
        return RunVerdict("with", options=("--device cpu",))
    role: Literal["target", "drafter"] = (
        "drafter" if drafter is None and target.parameters <= LARGEST_DRAFTER else "target"
    )
    if role == "drafter":
        candidates = [] if target.reader is None else [scoring_way(target.reader, tokens)]
    else:
        candidates = list(ways(config, weights, drafter, tokens, keep, target.stacks, alone=target.alone))
    if not candidates:
        why = f"{spoken(tokens)} tokens are more than the window of {config.context}, and no drafter compresses them"
        return RunVerdict("no", gpu, tokens, why=why)
    where = gpu or smallest_gpu(candidates)
    way = best(candidates, where) if where else None
    if where is None or way is None:
        least, most = min(candidate.nbytes for candidate in candidates), gpu or GPUS[-1]
        shared = "" if target.alone else f" on each of {target.gpus} GPUs"
        demand = f"{spoken(tokens)} tokens take {least / 2**30:.1f} GiB{shared}"
        why = f"{demand}, and a GPU of {most} GB has {room(most) >> 30}"
        instead = _instead_of(target, drafter, most, tokens, keep) if role == "target" else None
        return RunVerdict("no", most, tokens, why=why, instead=instead, role=role, together=target.gpus)
    options = way.options(where)
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
    """Propose what fits in the memory: a shorter prompt, the same model in fewer bits, or a smaller one."""
    assert target.config is not None
    assert target.weights is not None
    longest_fit = longest(target.config, target.weights, drafter, gpu, keep, target.stacks, target.alone)
    shorter = [f"a prompt of up to {spoken(longest_fit[0])}"] if longest_fit and longest_fit[0] < tokens else []
    others = [*shorter, *_narrower(target, drafter, gpu, tokens, keep)]
    return ", or ".join(others or (_published_for(gpu, tokens) if target.alone else ["more GPUs"])) or None


def _replacement(target: Subject, gpu: int | None, tokens: int) -> str | None:
    """Propose a file in place of one that does not run; None if its own line does."""
    if target.draft or not target.names:
        return None
    if target.config is None:
        smallest = min(size for *_, size in _published())
        return next(iter(_published_for(gpu, tokens, max(int(NEAR * target.nbytes), smallest))), None)
    undecoded = any(hindrance.stops and hindrance.of_format for hindrance in target.hindrances)
    return f"the same model as {USUAL.upper()}" if undecoded else None


def _narrower(target: Subject, drafter: Drafter | None, gpu: int, tokens: int, keep: float) -> list[str]:
    """The same model in the common file type of the most bits that fits."""
    sizes = {name: target.weights_as(name) for name in COMMON}
    assert target.config is not None
    for name, nbytes in sorted(sizes.items(), key=lambda item: -(item[1] or 0)):
        candidates = (
            [] if nbytes is None else list(ways(target.config, nbytes, drafter, tokens, keep, alone=target.alone))
        )
        if nbytes is not None and best(candidates, gpu):
            on = "the GPU" if target.alone else "each GPU"
            return [f"the same model as {name.upper()} ({nbytes / 2**30:.1f} GiB on {on})"]
    return []


def _published_for(gpu: int | None, tokens: int, most: int | None = None) -> list[str]:
    """The largest published model that runs on a GPU, of a file of at most so many bytes."""
    for name, nbytes, size in _published():
        shape = find_shape(name)
        config, elements = shape.config, sum(tensor.size for tensor in shape.tensors())
        drafter = next(iter(drafters_for(config, elements)), None) if elements > LARGEST_DRAFTER else None
        fits = gpu is None or best(list(ways(config, nbytes, drafter, tokens)), gpu)
        if fits and (most is None or size <= most):
            return [f"a file of {name} as {USUAL.upper()} ({size / 1e9:.1f} GB)"]
    return []


@cache
def _published() -> tuple[tuple[str, int, int], ...]:
    """Name, bytes on the device and bytes of the file of every published shape a GPU runs, the largest first."""
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
    """A verdict and what it rests on."""

    target: Subject
    drafter: Drafter | None
    scorer: Subject | None  # the drafter's file, if one was given; else the drafter is a published shape
    gpu: int | None  # GiB, as asked for
    tokens: int  # of prompt and answer, as asked for
    verdict: RunVerdict
    keep: float  # share of the prompt that the target reads after the drafter has scored it
    lengths: tuple[int, ...]  # of prompt and answer, that memory is told of

    @property
    def sizes(self) -> tuple[ModelConfig, int] | None:
        """The target's configuration and bytes on the device; None where no GPU runs it."""
        config_weights = self.target.config, self.target.weights
        if self.target.stopped or not self.target.on_device or config_weights[0] is None or config_weights[1] is None:
            return None
        return config_weights[0], config_weights[1]

    @property
    def vocabulary(self) -> str | None:
        """How the drafter's words are to the target's: ``same``, ``as large`` (of a shape, which names none) or
        ``other``, which only means that scores are carried over by bytes of the text."""
        if self.drafter is None or self.target.vocabulary is None:
            return None
        if self.scorer is not None:
            own = self.scorer.vocabulary
            return "same" if own is not None and own.sha256 == self.target.vocabulary.sha256 else "other"
        return "as large" if find_shape(self.drafter.name).text_tokens == self.target.text_tokens else "other"

    @property
    def command(self) -> str | None:
        """The command that runs it; None if it does not run."""
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
        """The option that leaves out the full prefill beside the answer, where the GPU has no room for that."""
        gpu = self.verdict.gpu
        if self.drafter is None or self.sizes is None or gpu is None or self.tokens > self.sizes[0].context:
            return ()
        way = best(self._ways(self.drafter), gpu)
        full = [candidate for candidate in self._ways(None) if way is not None and candidate.kv == way.kv]
        return () if best(full, gpu) else ("--no-full",)

    def _ways(self, drafter: Drafter | None) -> list[MemoryMode]:
        if self.sizes is None:
            return []
        alone = self.target.alone
        return list(ways(*self.sizes, drafter, self.tokens, self.keep, self.target.stacks, alone=alone))

    @property
    def cold(self) -> ColdPlacement | None:
        """Experts that are offloaded to host memory on the verdict's GPU; None if none are."""
        gpu = self.verdict.gpu
        if self.sizes is None or gpu is None or not any("--vram" in option for option in self.verdict.options):
            return None
        placement = cold_layers(*self.sizes, self.target.stacks, room(gpu))
        return placement if placement.layers else None

    def memory(self) -> Iterator[dict[str, Any]]:
        """Bytes on the GPU, or each of several, by type of cache and length: in full, and with the drafter, both there
        or by turns. Of a small model also what it takes to score a prompt for another."""
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
            assert self.target.reader is not None
            for tokens in self.lengths:
                yield {"kv": None, "tokens": tokens, "scoring": scoring_way(self.target.reader, tokens).nbytes}

    def gpus(self) -> Iterator[dict[str, Any]]:
        """For every GPU the way of what was asked for, and the longest of `SPOKEN` that it has a way for. None of
        drafters, which take as much of any GPU as their target leaves."""
        if self.sizes is None or self.verdict.role == "drafter":
            return
        candidates = self._ways(self.drafter)
        for gpu in sorted({*GPUS, *((self.gpu,) if self.gpu else ())}):
            most = longest(*self.sizes, self.drafter, gpu, self.keep, self.target.stacks, self.target.alone)
            yield {
                "card": gpu,
                "way": _told(best(candidates, gpu), gpu),
                "longest": most and {"tokens": most[0], **(_told(most[1], gpu) or {})},
            }

    def notes(self) -> Iterator[str]:
        """Yield notes on what may surprise a user."""
        yield from (hindrance.line for hindrance in self.target.hindrances if not hindrance.stops)
        if self.drafter is not None and (window := self.drafter.config.context) < self.tokens:
            scaled = scaled_by(self.drafter.config, self.tokens)
            need = f"need {scaled}" if scaled.startswith("--") else f"are read with {scaled}"
            yield f"{self.drafter.name} has a window of {spoken(window)} tokens; {spoken(self.tokens)} {need}"

    def told_verdict(self) -> dict[str, Any]:
        """JSON-able."""
        return recorded(asdict(self.verdict)) | {"options": list(self.verdict.options), "line": self.verdict.line}

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; sizes in bytes."""
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
            "verdict": self.told_verdict(),
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
    """A plan for a target and the drafter that was given, or one that is published; of `SPOKEN` if no lengths are."""
    drafter = proposed_drafter(target) if scorer is None else _given(scorer)
    reported_lengths = tuple(sorted({*(lengths or SPOKEN), tokens}))
    return ModelPlan(
        target, drafter, scorer, gpu, tokens, judge(target, drafter, gpu, tokens, keep), keep, reported_lengths
    )


def read_file(path: str | Path, gpus: int = 1, depth: Depth = whole) -> Subject:
    """Read the header of a file or of any of its shards; see `read_subject`. GGUFError if the file is not sound."""
    with GGUFFile.open(path) as file:
        return read_subject(file, gpus, depth)


def plan_file(
    path: str | Path, drafter: str | Path | None = None, *, gpu: int | None = None, tokens: int = SPOKEN[-1]
) -> ModelPlan:
    """Plan by the headers of files alone: a target, what scores prompts for it (a small published model if left out),
    GiB of the GPU (the smallest that does), and tokens of prompt and answer, of which the answer takes `ANSWER`.
    GGUFError: a file is not sound; ModelError: the drafter is none that could score."""
    return make_plan(read_file(path), None if drafter is None else read_file(drafter), gpu, tokens)


def _given(scorer: Subject) -> Drafter:
    """A file as a drafter; ModelError if it is none that a GPU runs."""
    if scorer.stopped is not None:
        raise ModelError(f"{scorer.path}: {scorer.stopped.line}")
    if not scorer.on_device or scorer.reader is None:
        raise ModelError(f"{scorer.path}: runs on the CPU alone, so no GPU has to hold it; leave it out")
    return scorer.reader


def _told(way: MemoryMode | None, gpu: int) -> dict[str, Any] | None:
    if way is None:
        return None
    return {"kv": way.kv, "by_turns": way.by_turns, "bytes": way.nbytes, "options": list(way.options(gpu))}


def _name(subject: Subject) -> str:
    return quote(subject.path)
