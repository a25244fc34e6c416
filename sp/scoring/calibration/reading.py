"""Generated texts with needles, their questions, and the weights that each head gives to the needles."""

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
from sp.models import Model, SessionCache
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.importance import attention_rows
from sp.ops.attention.kv_pages import PagedKV
from sp.prompt import Prompt, TokenisedPrompt
from sp.prompt.spans import same_start
from sp.scoring.attention.attention import TailScorer, unrotated_keys, unrotated_queries
from sp.scoring.attention.heads import up_to_question
from sp.scoring.base import HEATMAP_CHUNK, PrefixKeys, ScoreRequest


class NeedlePhrasing(NamedTuple):
    """A needle and the question for it, with slots such as {who}; see `SLOTS`."""

    needle: str
    question: str


PHRASINGS = (
    NeedlePhrasing(
        "To open the strongroom in {place}, dial {code}.", "Which combination does the vault at {place} need?"
    ),
    NeedlePhrasing("{who} was appointed keeper of the {thing} last spring.", "Who looks after the {thing} nowadays?"),
    NeedlePhrasing("The ferry to {place} was cancelled because {cause}.", "Why did no boat sail to {place}?"),
    NeedlePhrasing(
        "Mending the {thing} came to {number} crowns in the end.", "How much was paid to get the {thing} repaired?"
    ),
    NeedlePhrasing(
        "Anyone who wants to rent the {thing} has to write to {who}.", "Whom does one contact to hire the {thing}?"
    ),
    NeedlePhrasing(
        "The access key for the {place} gateway is {code}.", "What is the access key for the {place} gateway?"
    ),
    NeedlePhrasing("{who} grew up in {place} and left it at twenty.", "Where did {who} spend childhood?"),
    NeedlePhrasing(
        "The {thing} spoils when stored above {degrees} degrees.", "At what temperature does the {thing} go bad?"
    ),
    NeedlePhrasing(
        "By order of the mayor, the bridge at {place} closes in {month}.", "When is the crossing near {place} shut?"
    ),
    NeedlePhrasing(
        "The {thing} runs on a motor built by {who} and Sons.", "Which firm made the engine of the {thing}?"
    ),
    NeedlePhrasing("The serial number stamped on the {thing} reads {code}.", "Give the serial number of the {thing}."),
    NeedlePhrasing("{who} lost the lawsuit since {cause}.", "For what reason did the court decide against {who}?"),
    NeedlePhrasing(
        "A ticket from {place} costs children {number} pence.", "What do kids pay for a ride out of {place}?"
    ),
    NeedlePhrasing("The spare {thing} lies {spot}.", "Where would one look for a second {thing}?"),
    NeedlePhrasing(
        "After the merger the office at {place} kept {number} clerks.", "How many people still work in {place}?"
    ),
    NeedlePhrasing("In the play it is {who} who poisons the duke.", "Which character murders the nobleman on stage?"),
)  # heads chosen on one half of these are evaluated on the other half

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
"""Words for the slots; `code`, `number` and `degrees` are drawn as digits."""


def fill(phrasings: tuple[NeedlePhrasing, ...], rng: random.Random) -> list[NeedlePhrasing]:
    """Return needles and questions of one text, no two of which share a word of a slot if there are enough words."""
    words = {name: rng.sample(known, len(known)) for name, known in SLOTS.items()}
    filled = []
    for index, phrasing in enumerate(phrasings):
        slots = {name: known[index % len(known)] for name, known in words.items()}
        code = f"{rng.choice('BDFGKLMPRTVX')}{rng.randrange(10, 100)}-{rng.randrange(100, 1000)}"
        slots |= {"code": code, "number": str(rng.randrange(120, 980)), "degrees": str(rng.randrange(31, 79))}
        filled.append(NeedlePhrasing(phrasing.needle.format(**slots), phrasing.question.format(**slots)))
    return filled


Count = Callable[[str], int]  # tokens of a text
CODE_MODULES = ("argparse", "json.decoder", "textwrap", "csv", "heapq", "configparser", "difflib", "calendar")


@dataclass(frozen=True)
class NeedleText:
    """A document with its needles."""

    kind: str  # name in `KINDS`
    document: str
    needles: tuple[NeedlePhrasing, ...]  # verbatim, each with its question


def prose(rng: random.Random) -> Iterator[str]:
    """Yield paragraphs of Python's reference manual, without end; ConfigError where this Python has none."""
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError:
        raise ConfigError("this Python lacks pydoc_data, whose text a calibration needs; use another Python") from None
    names = sorted(topics)
    for name in cycle(rng.sample(names, len(names))):
        for paragraph in topics[name].split("\n\n"):
            yield f"{' '.join(paragraph.split())}\n"


def code(rng: random.Random, modules: Sequence[str] = CODE_MODULES) -> Iterator[str]:
    """Yield lines of modules of the standard library, without end; ConfigError where this Python has no source."""
    for name in cycle(rng.sample(modules, len(modules))):
        lines = source_of(name).splitlines(keepends=True)
        yield from lines[rng.randrange(len(lines) // 2) :]


def source_of(name: str) -> str:
    """Return the source of a module; ConfigError where this Python has none."""
    loader: Any = getattr(find_spec(name), "loader", None)
    source: str | None = loader.get_source(name) if hasattr(loader, "get_source") else None
    if not source:
        raise ConfigError(f"this Python has no source of {name}, which a calibration needs; use another Python")
    return source


def records(rng: random.Random) -> Iterator[str]:
    """Yield lines of JSON objects, without end."""
    states, zones = ("queued", "paid", "returned", "lost", "open"), ("north", "east", "harbour", "centre", "hill")
    while True:
        yield (
            f'{{"id": {rng.randrange(10_000, 99_999)}, "state": "{rng.choice(states)}", "zone": "{rng.choice(zones)}", '
            f'"weight": {rng.randrange(1, 900) / 10}, "items": {rng.randrange(1, 40)}}}\n'
        )


def log(rng: random.Random) -> Iterator[str]:
    """Yield lines of a log, without end."""
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
    """A kind of text: a generator of its pieces, and the format of a needle between them, with the slot {needle}."""

    pieces: Callable[[random.Random], Iterator[str]]
    frame: str


KINDS = {
    "prose": Kind(prose, "{needle}\n"),
    "code": Kind(code, "# {needle}\n"),
    "json": Kind(records, '{{"note": "{needle}"}}\n'),
    "log": Kind(log, "{needle}\n"),
}


def make_text(
    kind: str, phrasings: tuple[NeedlePhrasing, ...], tokens: int, count: Count, rng: random.Random
) -> NeedleText:
    """Make a document of about `tokens` tokens with needles all over it; ConfigError if this Python lacks the text."""
    text_kind = KINDS[kind]
    filled = fill(phrasings, rng)
    framed = [text_kind.frame.format(needle=needle) for needle, _ in filled]
    room = tokens - sum(map(count, framed))
    pieces: list[str] = []
    for piece in text_kind.pieces(rng):
        if (room := room - count(piece)) < 0:
            break
        pieces.append(piece)
    order = rng.sample(range(len(framed)), len(framed))
    for slot, index in reversed(list(enumerate(order))):  # from the end, so that earlier places stay
        share = (slot + rng.uniform(0.2, 0.8)) / len(framed)
        pieces.insert(max(1, round(share * len(pieces))) if pieces else 0, framed[index])
    return NeedleText(kind, "".join(pieces), tuple(filled))


HALVES = (("prose", "json"), ("code", "log"))  # kinds of text that hide the first and the second half of the phrasings
ROTATIONS = ("none", "post")
PART = 0.5  # a chunk counts as the needle's if it has this share of the needle tokens in the chunk with most of them


@dataclass(frozen=True)
class Sample:
    """Attention weights of one question.

    Attributes
    ----------
    kind : str
        Kind of the text.
    half : int
        Half of the phrasings and kinds, 0 or 1.
    chunks : tuple of int
        Chunks with a good part of the needle, among whole chunks before the question.
    weights : float32 (rotations, layers, heads, chunks, tokens of a chunk)
        Largest weight over the queries of the question, un-rotated and rotated.
    """

    kind: str
    half: int
    chunks: tuple[int, ...]
    weights: Floats

    def rank(self, scores: Floats) -> Any:
        """Return the number of chunks above the needle's, by scores (..., chunks), the first, with the sink, aside."""
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
    """Run a drafter over generated texts, each once, and yield a sample for the question of each needle.

    `model` has all its layers; `progress` is called with 1 after every question, of which there are `questions`.
    ConfigError: the drafter's context is too short, or this Python lacks the texts.
    """
    if model.config.context < 2 * tokens:
        raise ConfigError(
            f"a calibration needs a context of {2 * tokens} tokens, and the drafter has {model.config.context}; "
            "use another drafter, or scorer.calibrate=never"
        )

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
    """Return the number of samples from `texts` texts of each kind.

    >>> questions(2)
    64
    """
    return texts * sum(len(kinds) for kinds in HALVES) * len(PHRASINGS) // 2


def read_text(
    model: Model, tokenizer: Tokenizer, template: ChatTemplate | None, text: NeedleText, half: int
) -> Iterator[Sample]:
    """Yield one sample for each needle of a text, whose keys stay cached from one question to the next."""
    layers = TailScorer().prefix_layers(model.config)
    assert layers is not None, "TailScorer can continue from cached keys"
    session_cache, before = (
        SessionCache(layers, device=model.device, precision=model.arithmetic.attention),
        np.empty(0, np.int64),
    )
    for needle, question in text.needles:
        prompt = Prompt.from_document(text.document, question, template, needle=needle).tokenise(tokenizer)
        same = same_start(before, prompt.ids)
        session_cache.rewind_to(min(same, session_cache.tokens))
        before = prompt.ids
        start = int(prompt.mask("question").argmax())
        keys = PrefixKeys(
            session_cache, (start - 1,)
        )  # a snapshot from which recurrent layers continue with the next question
        yield Sample(text.kind, half, *look(model, prompt, keys))


def look(model: Model, prompt: TokenisedPrompt, keys: PrefixKeys) -> tuple[tuple[int, ...], Floats]:
    """Return the needle's chunks, and the weights of a `Sample`."""
    nothing = np.zeros(len(prompt), bool)
    positions = np.arange(len(prompt), dtype=np.int64)
    request = up_to_question(
        ScoreRequest(
            model, prompt.ids, positions, prompt.mask("question"), nothing, keys=keys, content_end=prompt.content_end
        )
    )
    chunks = int(prompt.mask("question").argmax()) // HEATMAP_CHUNK
    whole = chunks * HEATMAP_CHUNK
    columns: dict[str, list[Any]] = {rotation: [] for rotation in ROTATIONS}

    def on_layer(layer: int, q: Floats, cache: PagedKV) -> None:
        columns["post"].append(attention_rows(q, cache).max(axis=1)[:, :whole].copy())
        cache = unrotated_keys(cache, request.positions, model, layer)
        q = unrotated_queries(q, request.positions[-len(q) :], model, layer)
        columns["none"].append(attention_rows(q, cache).max(axis=1)[:, :whole].copy())

    TailScorer(queries="question").visit_layers(request, on_layer)
    xp = array_module(columns["post"][0])
    weights: Floats = on_host(xp.stack([xp.stack(columns[rotation]) for rotation in ROTATIONS]))
    needle_tokens = np.bincount(np.flatnonzero(prompt.mask("needle")[:whole]) // HEATMAP_CHUNK, minlength=chunks)
    chunks_held = tuple(np.flatnonzero(needle_tokens >= PART * needle_tokens.max()).tolist())
    return chunks_held, weights.reshape(*weights.shape[:-1], chunks, HEATMAP_CHUNK)
