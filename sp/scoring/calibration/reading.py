"""A drafter reads generated texts with needles: which words ask, what the texts hold, and what each head found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.gguf import ChatTemplate, Tokenizer
from sp.models import Model, Trail
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.importance import attention_rows
from sp.ops.attention.kv_pages import PagedKV
from sp.prompt import Prompt, TokenisedPrompt
from sp.prompt.spans import same_start
from sp.scoring.attention.attention import TailScorer, unrotated_keys, unrotated_rows
from sp.scoring.attention.heads import up_to_question
from sp.scoring.base import HEATMAP_CHUNK, KeptKeys, ScoreRequest


class Phrasing(NamedTuple):
    """A needle and the question for it, with slots such as {who}; see `SLOTS`."""

    needle: str
    question: str


PHRASINGS = (
    Phrasing("To open the strongroom in {place}, dial {code}.", "Which combination does the vault at {place} need?"),
    Phrasing("{who} was appointed keeper of the {thing} last spring.", "Who looks after the {thing} nowadays?"),
    Phrasing("The ferry to {place} was cancelled because {cause}.", "Why did no boat sail to {place}?"),
    Phrasing(
        "Mending the {thing} came to {number} crowns in the end.", "How much was paid to get the {thing} repaired?"
    ),
    Phrasing(
        "Anyone who wants to rent the {thing} has to write to {who}.", "Whom does one contact to hire the {thing}?"
    ),
    Phrasing("The access key for the {place} gateway is {code}.", "What is the access key for the {place} gateway?"),
    Phrasing("{who} grew up in {place} and left it at twenty.", "Where did {who} spend childhood?"),
    Phrasing("The {thing} spoils when stored above {degrees} degrees.", "At what temperature does the {thing} go bad?"),
    Phrasing(
        "By order of the mayor, the bridge at {place} closes in {month}.", "When is the crossing near {place} shut?"
    ),
    Phrasing("The {thing} runs on a motor built by {who} and Sons.", "Which firm made the engine of the {thing}?"),
    Phrasing("The serial number stamped on the {thing} reads {code}.", "Give the serial number of the {thing}."),
    Phrasing("{who} lost the lawsuit since {cause}.", "For what reason did the court decide against {who}?"),
    Phrasing("A ticket from {place} costs children {number} pence.", "What do kids pay for a ride out of {place}?"),
    Phrasing("The spare {thing} lies {spot}.", "Where would one look for a second {thing}?"),
    Phrasing("After the merger the office at {place} kept {number} clerks.", "How many people still work in {place}?"),
    Phrasing("In the play it is {who} who poisons the duke.", "Which character murders the nobleman on stage?"),
)  # the first half and the second half are never judged by what was chosen on themselves

SLOTS: dict[str, tuple[str, ...]] = {
    "who": (
        "Odalys Brandt", "Tiberius Kwan", "Marguerite Solheim", "Ignatius Okafor", "Philippa Veldkamp",
        "Rashid Monclair", "Henrike Abara", "Cornelius Ito", "Saoirse Lindqvist", "Bartholomew Nez", "Yevgenia Prato",
        "Lucian Achterberg",
    ),
    "place": (
        "Harrowmere", "Port Adelin", "Kestrel Bay", "Upper Wendle", "Saltmarsh", "Greyfriars", "Thornecombe", "Valdora",
        "Quillfield", "Nether Ashby", "Cape Morrow", "Ostenburg",
    ),
    "thing": (
        "brass theodolite", "copper still", "weather balloon", "pipe organ", "printing press", "diving bell",
        "harvest wagon", "carousel", "telescope", "seed drill", "steam launch", "glass kiln",
    ),
    "cause": (
        "the harbour had frozen over", "a witness withdrew", "the pilot fell ill", "nobody had signed the papers",
        "the cargo was too heavy", "a storm tore the cables", "the deadline had passed", "the seal was broken",
    ),
    "spot": (
        "under the chapel stairs", "in the blue cabinet", "behind the boiler", "on top of the clock tower",
        "inside the old well", "below the stage", "next to the stables", "in the attic of the mill",
    ),
    "month": ("January", "March", "April", "June", "July", "September", "October", "November"),
}  # fmt: skip
"""Words of the slots; `code`, `number` and `degrees` are drawn as digits."""


def fill(phrasings: tuple[Phrasing, ...], rng: random.Random) -> list[Phrasing]:
    """Needles and questions of one text, no two of which share a word of a slot where there are enough."""
    words = {name: rng.sample(known, len(known)) for name, known in SLOTS.items()}
    filled = []
    for index, phrasing in enumerate(phrasings):
        slots = {name: known[index % len(known)] for name, known in words.items()}
        code = f"{rng.choice('BDFGKLMPRTVX')}{rng.randrange(10, 100)}-{rng.randrange(100, 1000)}"
        slots |= {"code": code, "number": str(rng.randrange(120, 980)), "degrees": str(rng.randrange(31, 79))}
        filled.append(Phrasing(phrasing.needle.format(**slots), phrasing.question.format(**slots)))
    return filled


Count = Callable[[str], int]  # tokens of a text
CODE_MODULES = ("argparse", "json.decoder", "textwrap", "csv", "heapq", "configparser", "difflib", "calendar")


@dataclass(frozen=True)
class Text:
    """A document with its needles."""

    kind: str  # name in `KINDS`
    document: str
    needles: tuple[Phrasing, ...]  # as they stand in it, each with its question


def prose(rng: random.Random) -> Iterator[str]:
    """Paragraphs of Python's reference manual, without end; ConfigError where this Python has none."""
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError:
        raise ConfigError("this Python lacks pydoc_data, whose text a calibration reads; take another Python") from None
    names = sorted(topics)
    for name in cycle(rng.sample(names, len(names))):
        for paragraph in topics[name].split("\n\n"):
            yield f"{' '.join(paragraph.split())}\n"


def code(rng: random.Random, modules: Sequence[str] = CODE_MODULES) -> Iterator[str]:
    """Lines of modules of the standard library, without end; ConfigError where this Python has no source."""
    for name in cycle(rng.sample(modules, len(modules))):
        lines = source_of(name).splitlines(keepends=True)
        yield from lines[rng.randrange(len(lines) // 2) :]


def source_of(name: str) -> str:
    """Source of a module; ConfigError where this Python has none."""
    loader: Any = getattr(find_spec(name), "loader", None)
    source: str | None = loader.get_source(name) if hasattr(loader, "get_source") else None
    if not source:
        raise ConfigError(f"this Python has no source of {name}, which a calibration reads; take another Python")
    return source


def records(rng: random.Random) -> Iterator[str]:
    """JSON, one object a line, without end."""
    states, zones = ("queued", "paid", "returned", "lost", "open"), ("north", "east", "harbour", "centre", "hill")
    while True:
        yield (
            f'{{"id": {rng.randrange(10_000, 99_999)}, "state": "{rng.choice(states)}", "zone": "{rng.choice(zones)}", '
            f'"weight": {rng.randrange(1, 900) / 10}, "items": {rng.randrange(1, 40)}}}\n'
        )


def log(rng: random.Random) -> Iterator[str]:
    """Lines of a log, without end."""
    parts, verbs = ("scheduler", "mailer", "indexer", "proxy", "archive"), ("started", "retried", "skipped", "finished")
    seconds = rng.randrange(40_000)
    while True:
        seconds += rng.randrange(1, 30)
        stamp = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        level = rng.choice(("INFO", "INFO", "WARN", "DEBUG"))
        job = f"{rng.choice(verbs)} job {rng.randrange(9999)} in {rng.randrange(900)} ms"
        yield f"{stamp} {level} {rng.choice(parts)}: {job}\n"


@dataclass(frozen=True)
class Kind:
    """A kind of text: its pieces without end, and how a needle stands between them as {needle}."""

    pieces: Callable[[random.Random], Iterator[str]]
    frame: str


KINDS = {
    "prose": Kind(prose, "{needle}\n"),
    "code": Kind(code, "# {needle}\n"),
    "json": Kind(records, '{{"note": "{needle}"}}\n'),
    "log": Kind(log, "{needle}\n"),
}


def make_text(kind: str, phrasings: tuple[Phrasing, ...], tokens: int, count: Count, rng: random.Random) -> Text:
    """A document of about so many tokens with needles spread over it. ConfigError: this Python lacks the text."""
    made = KINDS[kind]
    filled = fill(phrasings, rng)
    framed = [made.frame.format(needle=needle) for needle, _ in filled]
    room = tokens - sum(map(count, framed))
    pieces: list[str] = []
    for piece in made.pieces(rng):
        if (room := room - count(piece)) < 0:
            break
        pieces.append(piece)
    order = rng.sample(range(len(framed)), len(framed))
    for slot, index in reversed(list(enumerate(order))):  # from the end, so that earlier places stay
        share = (slot + rng.uniform(0.2, 0.8)) / len(framed)
        pieces.insert(max(1, round(share * len(pieces))) if pieces else 0, framed[index])
    return Text(kind, "".join(pieces), tuple(filled))


HALVES = (("prose", "json"), ("code", "log"))  # kinds of text that hide the first and the second half of the phrasings
ROTATIONS = ("none", "post")
PART = 0.5  # share of what the fullest chunk holds of a needle that another one must hold to stand for it as well


@dataclass(frozen=True)
class Sample:
    """What one question showed."""

    kind: str  # of the text
    half: int  # of the phrasings and kinds, 0 or 1
    chunks: tuple[int, ...]  # those that hold a good part of the needle, among whole chunks before the question
    weights: Floats  # largest weight that a query of the question gave each token, un-rotated and rotated

    def rank(self, scores: Floats) -> Any:
        """Chunks with more than the needle's score, of scores (..., chunks); the first, with the sink, is none."""
        best = scores[..., list(self.chunks)].max(axis=-1, keepdims=True)
        return (scores[..., 1:] > best).sum(axis=-1)


def samples(
    model: Model,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    *,
    texts: int = 1,
    tokens: int = 1536,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Sample]:
    """Let a drafter read generated texts, each once, and ask it for every needle of them. `model`, `tokenizer`,
    `template`: the drafter, with all its layers; `progress`: called with 1 after every question; there are `questions`
    of them; ConfigError: the drafter reads fewer tokens, or this Python lacks the texts.
    """
    if model.config.context < 2 * tokens:
        raise ConfigError(f"a calibration reads texts of {tokens} tokens, and the drafter has room for half of that")

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    for half, kinds in enumerate(HALVES):
        phrasings = PHRASINGS[half * len(PHRASINGS) // 2 :][: len(PHRASINGS) // 2]
        for kind in kinds:
            for number in range(texts):
                text = make_text(kind, phrasings, tokens, count, random.Random(f"{seed} {kind} {number}"))
                for sample in read_text(model, tokenizer, template, text, half):
                    yield sample
                    if progress is not None:
                        progress(1)


def questions(texts: int) -> int:
    """Samples that so many texts of each kind give.

    >>> questions(2)
    64
    """
    return texts * sum(len(kinds) for kinds in HALVES) * len(PHRASINGS) // 2


def read_text(
    model: Model, tokenizer: Tokenizer, template: ChatTemplate | None, text: Text, half: int
) -> Iterator[Sample]:
    """One sample for each needle of a text, whose keys are kept from one question to the next."""
    layers = TailScorer().kept_layers(model.config)
    assert layers is not None, "a scorer of attention keeps keys"
    trail, before = Trail(layers, device=model.device, precision=model.arithmetic.attention), np.empty(0, np.int64)
    for needle, question in text.needles:
        prompt = Prompt.from_document(text.document, question, template, needle=needle).tokenise(tokenizer)
        same = same_start(before, prompt.ids)
        trail.back_to(min(same, trail.tokens))
        before = prompt.ids
        start = int(prompt.mask("question").argmax())
        keys = KeptKeys(trail, (start - 1,))  # behind it recurrent layers can go on
        yield Sample(text.kind, half, *look(model, prompt, keys))


def look(model: Model, prompt: TokenisedPrompt, keys: KeptKeys) -> tuple[tuple[int, ...], Floats]:
    """The needle's chunks, and the weights of a `Sample`."""
    nothing = np.zeros(len(prompt), bool)
    positions = np.arange(len(prompt), dtype=np.int64)
    request = up_to_question(
        ScoreRequest(
            model, prompt.ids, positions, prompt.mask("question"), nothing, keys=keys, asked=prompt.content_end
        )
    )
    chunks = int(prompt.mask("question").argmax()) // HEATMAP_CHUNK
    whole = chunks * HEATMAP_CHUNK
    columns: dict[str, list[Any]] = {rotation: [] for rotation in ROTATIONS}

    def take(layer: int, q: Floats, at: PagedKV) -> None:
        columns["post"].append(attention_rows(q, at).max(axis=1)[:, :whole].copy())
        at = unrotated_keys(at, request.positions, model, layer)
        q = unrotated_rows(q, request.positions[-len(q) :], model, layer)
        columns["none"].append(attention_rows(q, at).max(axis=1)[:, :whole].copy())

    TailScorer(queries="question").read(request, take)
    xp = array_module(columns["post"][0])
    weights: Floats = on_host(xp.stack([xp.stack(columns[rotation]) for rotation in ROTATIONS]))
    held = np.bincount(np.flatnonzero(prompt.mask("needle")[:whole]) // HEATMAP_CHUNK, minlength=chunks)
    chunks_held = tuple(np.flatnonzero(held >= PART * held.max()).tolist())
    return chunks_held, weights.reshape(*weights.shape[:-1], chunks, HEATMAP_CHUNK)
