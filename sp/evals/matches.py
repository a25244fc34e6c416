"""Judging: ways to tell whether an answer is right, each with its name, and what of the evidence was kept."""

from __future__ import annotations

import json
import re
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from sp.arrays import Bools
from sp.errors import ConfigError
from sp.prompt import TokenisedPrompt
from sp.selection import Selection

Match = str  # a name of `MATCHES`
Judge = Callable[[str, Sequence[str]], float]  # score in [0, 1] of a text, by the answers of an example

MATCHES: dict[Match, Judge] = {}

CONTROL = re.compile(r"[\x00-\x1f]")
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
CHOICE = (re.compile(r"The correct answer is \(([A-D])\)"), re.compile(r"The correct answer is ([A-D])"))
SEARCH_SECONDS = 5.0
SEARCH = "import json, re, sys; p, t = json.load(sys.stdin); print(any(re.search(one, t) for one in p))"


def match(name: Match) -> Callable[[Judge], Judge]:
    """Decorator that files a way to judge."""

    def add(judge: Judge) -> Judge:
        MATCHES[name] = judge
        return judge

    return add


def plain(text: str) -> str:
    """A text as RULER compares it: no control characters, no white space at the ends, lower case."""
    return CONTROL.sub("\n", text).strip().lower()


def normalised(text: str) -> str:
    """A text as SQuAD's ``evaluate-v2.0.py`` compares it (arXiv 1606.05250): no case, punctuation or articles."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


@match("all")
def share_of_all(text: str, answers: Sequence[str]) -> float:
    """RULER's ``string_match_all`` (arXiv 2404.06654): the share of the answers that occur in the text."""
    said = plain(text)
    return sum(answer.lower() in said for answer in answers) / len(answers)


@match("any")
def any_of(text: str, answers: Sequence[str]) -> float:
    """RULER's ``string_match_part``: whether one of the answers occurs in the text."""
    said = plain(text)
    return float(any(answer.lower() in said for answer in answers))


@match("all_words")
def share_of_all_words(text: str, answers: Sequence[str]) -> float:
    """The share of the answers that occur in the text as whole words, letter case aside."""
    return sum(_as_words(answer, text) for answer in answers) / len(answers)


@match("any_words")
def any_of_words(text: str, answers: Sequence[str]) -> float:
    """Whether one of the answers occurs in the text as whole words, letter case aside."""
    return float(any(_as_words(answer, text) for answer in answers))


def _as_words(answer: str, text: str) -> bool:
    """Whether no letter or digit continues an answer at either end where it begins or ends with one."""
    pattern = r"\s+".join(map(re.escape, answer.split()))
    return re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE) is not None


@match("exact")
def in_order(text: str, answers: Sequence[str]) -> float:
    """Whether the text is the answers joined by ", ", with or without a full stop, letter case aside."""
    return float(plain(text).removesuffix(".") == ", ".join(answers).lower())


@match("squad_exact")
def squad_exact(text: str, answers: Sequence[str]) -> float:
    """SQuAD's exact match: whether the text is one of the answers, both normalised."""
    return float(normalised(text) in map(normalised, answers))


@match("squad_f1")
def squad_f1(text: str, answers: Sequence[str]) -> float:
    """SQuAD's F1: harmonic mean of precision and recall of words, for the answer where it is best."""
    return max(_f1(normalised(text).split(), normalised(answer).split()) for answer in answers)


def _f1(said: list[str], asked: list[str]) -> float:
    if not said or not asked:
        return float(said == asked)
    shared = (Counter(said) & Counter(asked)).total()
    return 2 * shared / (len(said) + len(asked))  # 2 pr / (p + r), with p and r written out


@match("regex")
def any_pattern(text: str, answers: Sequence[str]) -> float:
    """Whether one of the answers, as a regular expression of Python, is found in the text. They are searched in a
    process of their own, as some expressions take for ever; ConfigError after five seconds."""
    asked = json.dumps([list(answers), text.strip()])
    command = [sys.executable, "-I", "-S", "-c", SEARCH]
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=SEARCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        told = f"takes more than {SEARCH_SECONDS:g} s; leave out repeats of repeats"
        raise ConfigError(f"the regular expression {answers[0][:60]!r} on an answer {told}") from None
    if done.returncode:
        raise ConfigError(f"the regular expression {answers[0][:60]!r} cannot be searched: {done.stderr[-80:].strip()}")
    return float(done.stdout.strip() == "True")


@match("choice")
def choice(text: str, answers: Sequence[str]) -> float:
    """LongBench v2 (``pred.py`` of github.com/THUDM/LongBench, MIT): the letter after "The correct answer is"."""
    said = text.replace("*", "")
    found = next((hit for pattern in CHOICE if (hit := pattern.search(said))), None)
    return float(found is not None and found[1] in answers)


@match("mrcr")
def copied(text: str, answers: Sequence[str]) -> float:
    """OpenAI's MRCR (huggingface.co/datasets/openai/mrcr): 0 unless the text begins, white space aside, with a mark,
    the first answer; else likeness of the rest to the second."""
    mark, wanted = answers
    said = text.lstrip()
    return SequenceMatcher(None, said.removeprefix(mark), wanted).ratio() if said.startswith(mark) else 0.0


@match("mrcr_v2")
def copied_v2(text: str, answers: Sequence[str]) -> float:
    """Google's MRCR v2 (github.com/google-deepmind/eval_hub, Apache-2.0): as `copied`, but what follows the last mark.
    The order of the two texts is theirs, and matters: the likeness of `difflib` is not symmetric."""
    mark, wanted = answers
    said = text.strip()
    if not said.startswith(mark):
        return 0.0
    return SequenceMatcher(None, wanted.strip(), said.rpartition(mark)[2].strip()).ratio()


def score_answer(text: str, answers: Sequence[str], match: Match) -> float:
    """Score of an answer in [0, 1], in one of the ways of `sp.evals.matches`."""
    return MATCHES[match](text, answers)


@dataclass(frozen=True)
class Evidence:
    """Where in a prompt its evidence stands. `needles`, tuple of boolean arrays (n,): Tokens of each needle; `values`,
    boolean array (n,): Tokens of the answers inside the needles; of whole needles where an answer is in none."""

    needles: tuple[Bools, ...]
    values: Bools

    @classmethod
    def of(cls, prompt: TokenisedPrompt, answers: Sequence[str]) -> Evidence:
        """Locate the needles of a prompt and the answers in them, by bytes."""
        raw, starts, ends = prompt.prompt.text.encode(), prompt.bytes[:, 0], prompt.bytes[:, 1]
        needles, values = [], np.zeros(len(prompt), bool)
        for span in prompt.prompt.spans:
            if span.kind != "needle":
                continue
            needles.append((starts < span.end) & (ends > span.start))
            said = raw[span.start : span.end]
            places = [(_last(said, answer.encode()), len(answer.encode())) for answer in answers]
            found = [(span.start + at, size) for at, size in places if at >= 0]
            for at, size in found or [(span.start, span.end - span.start)]:
                values |= (starts < at + size) & (ends > at)
        return cls(tuple(needles), values)


def _last(text: bytes, part: bytes) -> int:
    """As `text.rfind(part)`, which may take their product; `find` is linear (CPython 3.10 and later)."""
    at = text[::-1].find(part[::-1])
    return -1 if at < 0 else len(text) - at - len(part)


@dataclass(frozen=True)
class Caught:
    """What a selection kept of the evidence. `rank`: place of the needle's best chunk by score, 1 for the highest, the
    worst of several needles; `margin`: by how much it beats the best chunk of which nothing was kept, as a share of the
    range of scores. None where no chunk of a needle has a score, or nothing was left out."""

    recall: float  # share of the needles' tokens that were kept
    complete: bool  # whether every token of the answers was kept, so that the target can still be right
    rank: int | None
    margin: float | None


def caught(selection: Selection, evidence: Evidence) -> Caught | None:
    """Compare a selection with the evidence; None where there is no needle."""
    if not evidence.needles:
        return None
    kept, bounds, scores = selection.selected, selection.bounds, selection.chunk_scores.astype(np.float64)
    known = np.isfinite(scores)
    left_out = known & (np.add.reduceat(kept, bounds[:-1]) == 0)
    touched = [np.add.reduceat(needle, bounds[:-1]) > 0 for needle in evidence.needles]
    worst = min(np.where(known & hit, scores, -np.inf).max() for hit in touched)
    rank = int((scores[known] > worst).sum()) + 1 if np.isfinite(worst) else None
    margin = None
    if rank is not None and left_out.any():
        spread = float(np.ptp(scores[known]))
        margin = float((worst - scores[left_out].max()) / spread) if spread else 0.0
    recall = float(np.mean([kept[needle].mean() for needle in evidence.needles]))
    return Caught(recall, bool(kept[evidence.values].all()), rank, margin)
