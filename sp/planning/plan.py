"""plan_file: whether a model file runs on which card, what it takes at which length, with which drafter, and how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.models.config import ModelConfig
from sp.models.file.rope_keys import describe_window
from sp.models.layer.cold_experts import told
from sp.models.run.chunked import CHUNK
from sp.models.synthetic.shapes import find_shape
from sp.planning.cards import (
    ANSWER,
    CARDS,
    KEEP,
    SPOKEN,
    Drafter,
    Way,
    best,
    caches,
    longest,
    need,
    room,
    scoring_way,
    ways,
)
from sp.planning.cold_layers import Cold, cold_layers
from sp.planning.subject import Depth, Subject, read_subject, whole
from sp.planning.verdict import Verdict, judge, proposed_drafter, scaled_by, spoken

ASK = '--prompt-file TEXT.txt --question "..."'


@dataclass(frozen=True)
class Plan:
    """A verdict and what it rests on.

    Attributes
    ----------
    target : Subject
    drafter : Drafter or None
    scorer : Subject or None
        The drafter's file, if one was given; else the drafter is a published shape.
    card : int or None
        GiB, as asked for.
    tokens : int
        Of prompt and answer, as asked for.
    verdict : Verdict
    keep : float
        Share of the prompt that the target reads after the drafter has scored it.
    lengths : tuple of int
        Of prompt and answer, that memory is told of.
    """

    target: Subject
    drafter: Drafter | None
    scorer: Subject | None
    card: int | None
    tokens: int
    verdict: Verdict
    keep: float
    lengths: tuple[int, ...]

    @property
    def sizes(self) -> tuple[ModelConfig, int] | None:
        """The target's configuration and bytes on the device; None where no card runs it."""
        held = self.target.config, self.target.weights
        if self.target.stopped or not self.target.on_device or held[0] is None or held[1] is None:
            return None
        return held[0], held[1]

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
        """How to run it; None where it does not run."""
        if self.target.draft and not self.target.refused:
            return f"sp run --target MODEL.gguf --decode ddtree --draft {_name(self.target)}"
        if self.verdict.runs == "no" or self.target.shape is not None:
            return None
        options = "".join(f" {one}" for one in (*self.verdict.options, *self._uncompared()))
        if self.verdict.role == "drafter":
            return f"sp run --target MODEL.gguf --drafter {_name(self.target)}{options} {ASK}"
        other = "DRAFTER.gguf" if self.scorer is None else _name(self.scorer)
        return f"sp run --target {_name(self.target)} --drafter {other}{options} {ASK}"

    def _uncompared(self) -> tuple[str, ...]:
        """The option that leaves out the full prefill beside the answer, where the card has no room for that."""
        card = self.verdict.card
        if self.drafter is None or self.sizes is None or card is None or self.tokens > self.sizes[0].context:
            return ()
        way = best(self._ways(self.drafter), card)
        full = [one for one in self._ways(None) if way is not None and one.kv == way.kv]
        return () if best(full, card) else ("--no-full",)

    def _ways(self, drafter: Drafter | None) -> list[Way]:
        """All ways to run what was asked for."""
        if self.sizes is None:
            return []
        alone = self.target.alone
        return list(ways(*self.sizes, drafter, self.tokens, self.keep, self.target.stacks, alone=alone))

    @property
    def cold(self) -> Cold | None:
        """Which experts wait in host memory on the verdict's card; None if none do."""
        card = self.verdict.card
        if self.sizes is None or card is None or not any("--vram" in option for option in self.verdict.options):
            return None
        found = cold_layers(*self.sizes, self.target.stacks, room(card))
        return found if found.layers else None

    def memory(self) -> Iterator[dict[str, Any]]:
        """Bytes on the card, or each of several, by type of cache and length: in full, and with the drafter, both there
        or by turns.

        Of a small model also what it takes to score a prompt for another.
        """
        if self.sizes is None:
            return
        (config, weights), stacks = self.sizes, self.target.stacks
        for kv in caches(config):
            for tokens in self.lengths:
                read = tokens - ANSWER
                whole = need(config, weights, None, read, kv, stacks=stacks) if tokens <= config.context else None
                pair = self.drafter and need(config, weights, self.drafter, read, kv, self.keep, stacks)
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

    def cards(self) -> Iterator[dict[str, Any]]:
        """For every card the way of what was asked for, and the longest of `SPOKEN` that it has a way for.

        None of drafters, which take as much of any card as their target leaves.
        """
        if self.sizes is None or self.verdict.role == "drafter":
            return
        found = self._ways(self.drafter)
        for card in sorted({*CARDS, *((self.card,) if self.card else ())}):
            most = longest(*self.sizes, self.drafter, card, self.keep, self.target.stacks, self.target.alone)
            yield {
                "card": card,
                "way": _told(best(found, card), card),
                "longest": most and {"tokens": most[0], **(_told(most[1], card) or {})},
            }

    def notes(self) -> Iterator[str]:
        """What may surprise whoever runs it."""
        yield from (one.line for one in self.target.hindrances if not one.stops)
        if self.drafter is not None and (window := self.drafter.config.context) < self.tokens:
            scaled = scaled_by(self.drafter.config, self.tokens)
            need = f"need {scaled}" if scaled.startswith("--") else f"are read with {scaled}"
            yield f"{self.drafter.name} has a window of {spoken(window)} tokens; {spoken(self.tokens)} {need}"

    def told_verdict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self.verdict) | {"options": list(self.verdict.options), "line": self.verdict.line}

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
            "shared_by": self.target.cards,
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
                "line": told(self.cold.layers, len(self.target.stacks), self.cold.host),
            },
            "drafter": drafter,
            "memory": list(self.memory()),
            "cards": list(self.cards()),
            "notes": list(self.notes()),
            "command": self.command,
        }


def make_plan(
    target: Subject,
    scorer: Subject | None,
    card: int | None,
    tokens: int,
    keep: float = KEEP,
    lengths: Iterable[int] = (),
) -> Plan:
    """A plan for a target and the drafter that was given, or one that is published; of `SPOKEN` if no lengths are."""
    drafter = proposed_drafter(target) if scorer is None else _given(scorer)
    told = tuple(sorted({*(lengths or SPOKEN), tokens}))
    return Plan(target, drafter, scorer, card, tokens, judge(target, drafter, card, tokens, keep), keep, told)


def read_file(path: str | Path, cards: int = 1, depth: Depth = whole) -> Subject:
    """What the header of a file, or of any shard of it, tells; see `read_subject`. GGUFError if it is no sound one."""
    with GGUFFile.open(path) as file:
        return read_subject(file, cards, depth)


def plan_file(
    path: str | Path, drafter: str | Path | None = None, *, card: int | None = None, tokens: int = SPOKEN[-1]
) -> Plan:
    """Plan by the headers of files alone.

    Parameters
    ----------
    path : str or Path
        The target, or any shard of it.
    drafter : str or Path, optional
        What scores prompts for it; a small published model is reckoned with if left out.
    card : int, optional
        GiB of the card; the smallest that does, if left out.
    tokens : int
        Of prompt and answer, of which the answer takes `ANSWER`.

    Raises
    ------
    GGUFError
        A file is no sound GGUF file.
    ModelError
        The drafter is none that could score.

    Examples
    --------
    >>> from sp.session import embedded
    >>> plan_file(embedded("target"), embedded("drafter"), card=12, tokens=8192).verdict.line
    'yes: 8K tokens on a card of 12 GB'
    """
    return make_plan(read_file(path), None if drafter is None else read_file(drafter), card, tokens)


def _given(scorer: Subject) -> Drafter:
    """A file as a drafter; ModelError if it is none that a card runs."""
    if scorer.stopped is not None:
        raise ModelError(f"{scorer.path}: {scorer.stopped.line}")
    if not scorer.on_device or scorer.reader is None:
        raise ModelError(f"{scorer.path}: runs on the CPU alone, so no card has to hold it; leave it out")
    return scorer.reader


def _told(way: Way | None, card: int) -> dict[str, Any] | None:
    if way is None:
        return None
    return {"kv": way.kv, "by_turns": way.by_turns, "bytes": way.nbytes, "options": list(way.options(card))}


def _name(subject: Subject) -> str:
    return quote(subject.path)
