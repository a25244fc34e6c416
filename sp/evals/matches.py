"""Scoring of answers, by methods with names, and of the evidence in a selection."""

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
    """Return a decorator that registers a method of scoring."""

    def add(judge: Judge) -> Judge:
        MATCHES[name] = judge
        return judge

    return add


def plain(text: str) -> str:
    """Normalise a text as RULER does: no control characters, no white space at the ends, lower case."""
    return CONTROL.sub("\n", text).strip().lower()


def normalised(text: str) -> str:
    """Normalise a text as SQuAD's ``evaluate-v2.0.py`` does (arXiv 1606.05250): no case, punctuation or articles."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


@match("all")
def share_of_all(text: str, answers: Sequence[str]) -> float:
    """Return the share of the answers that occur in the text: RULER's ``string_match_all`` (arXiv 2404.06654)."""
    normal = plain(text)
    return sum(answer.lower() in normal for answer in answers) / len(answers)


@match("any")
def any_of(text: str, answers: Sequence[str]) -> float:
    """Return 1 if one of the answers occurs in the text, else 0: RULER's ``string_match_part``."""
    normal = plain(text)
    return float(any(answer.lower() in normal for answer in answers))


@match("all_words")
def share_of_all_words(text: str, answers: Sequence[str]) -> float:
    """Return the share of the answers that occur in the text as whole words, in any letter case."""
    return sum(_as_words(answer, text) for answer in answers) / len(answers)


@match("any_words")
def any_of_words(text: str, answers: Sequence[str]) -> float:
    """Return 1 if one of the answers occurs in the text as whole words, in any letter case, else 0."""
    return float(any(_as_words(answer, text) for answer in answers))


def _as_words(answer: str, text: str) -> bool:
    """Return True if an answer occurs in a text with no letter or digit right before or after it."""
    pattern = r"\s+".join(map(re.escape, answer.split()))
    return re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE) is not None


@match("exact")
def in_order(text: str, answers: Sequence[str]) -> float:
    """Return 1 if the text is the answers joined by ", ", with or without a full stop, in any letter case, else 0."""
    return float(plain(text).removesuffix(".") == ", ".join(answers).lower())


@match("squad_exact")
def squad_exact(text: str, answers: Sequence[str]) -> float:
    """Return 1 if the text is one of the answers, both normalised, else 0: SQuAD's exact match."""
    return float(normalised(text) in map(normalised, answers))


@match("squad_f1")
def squad_f1(text: str, answers: Sequence[str]) -> float:
    """Return SQuAD's F1, the harmonic mean of precision and recall of words, for the best of the answers."""
    return max(_f1(normalised(text).split(), normalised(answer).split()) for answer in answers)


def _f1(words: list[str], expected: list[str]) -> float:
    if not words or not expected:
        return float(words == expected)
    shared = (Counter(words) & Counter(expected)).total()
    return 2 * shared / (len(words) + len(expected))  # 2 p r / (p + r) with p = shared / words, r = shared / expected


@match("regex")
def any_pattern(text: str, answers: Sequence[str]) -> float:
    """Return 1 if one of the answers, a regular expression of Python, matches in the text, else 0.

    The search runs in a process of its own, because some expressions take exponential time; ConfigError after five
    seconds.
    """
    job = json.dumps([list(answers), text.strip()])
    command = [sys.executable, "-I", "-S", "-c", SEARCH]
    try:
        done = subprocess.run(command, input=job, capture_output=True, text=True, timeout=SEARCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        reason = f"takes more than {SEARCH_SECONDS:g} s; remove nested repetitions such as (a+)+"
        raise ConfigError(f"the regular expression {answers[0][:60]!r} on an answer {reason}") from None
    if done.returncode:
        raise ConfigError(f"the regular expression {answers[0][:60]!r} is invalid: {done.stderr[-80:].strip()}")
    return float(done.stdout.strip() == "True")


@match("choice")
def choice(text: str, answers: Sequence[str]) -> float:
    """Return 1 if the letter after "The correct answer is" is right, else 0, as LongBench v2 does.

    The rule is that of ``pred.py`` of github.com/THUDM/LongBench (MIT).
    """
    unmarked = text.replace("*", "")
    letter = next((hit for pattern in CHOICE if (hit := pattern.search(unmarked))), None)
    return float(letter is not None and letter[1] in answers)


@match("mrcr")
def copied(text: str, answers: Sequence[str]) -> float:
    """Return the similarity of the text, after a mark, to a reply, as OpenAI's MRCR does; 0 if the mark is missing.

    The mark is the first answer, with which the text must begin, white space aside; the reply is the second
    (huggingface.co/datasets/openai/mrcr).
    """
    mark, reply = answers
    stripped = text.lstrip()
    return SequenceMatcher(None, stripped.removeprefix(mark), reply).ratio() if stripped.startswith(mark) else 0.0


@match("mrcr_v2")
def copied_v2(text: str, answers: Sequence[str]) -> float:
    """Return the score of Google's MRCR v2 (github.com/google-deepmind/eval_hub, Apache-2.0).

    It is that of `copied`, for the text after the last mark. The order of the two texts is that of the reference, and
    matters: the similarity of `difflib` is not symmetric.
    """
    mark, reply = answers
    stripped = text.strip()
    if not stripped.startswith(mark):
        return 0.0
    return SequenceMatcher(None, reply.strip(), stripped.rpartition(mark)[2].strip()).ratio()


def score_answer(text: str, answers: Sequence[str], match: Match) -> float:
    """Return the score of an answer in [0, 1], by a method of `MATCHES`."""
    return MATCHES[match](text, answers)


@dataclass(frozen=True)
class Evidence:
    """Masks of the evidence in a prompt.

    Attributes
    ----------
    needles : tuple of boolean arrays (n,)
        Tokens of each needle.
    values : boolean array (n,)
        Tokens of the answers inside the needles; of whole needles that contain no answer.
    """

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
            needle = raw[span.start : span.end]
            places = [(_last(needle, answer.encode()), len(answer.encode())) for answer in answers]
            answer_spans = [(span.start + offset, size) for offset, size in places if offset >= 0]
            for offset, size in answer_spans or [(span.start, span.end - span.start)]:
                values |= (starts < offset + size) & (ends > offset)
        return cls(tuple(needles), values)


def _last(text: bytes, part: bytes) -> int:
    """Return `text.rfind(part)`, which takes quadratic time; `find` is linear (CPython 3.10 and later)."""
    reversed_offset = text[::-1].find(part[::-1])
    return -1 if reversed_offset < 0 else len(text) - reversed_offset - len(part)


@dataclass(frozen=True)
class EvidenceRecall:
    """Evidence in a selection.

    Attributes
    ----------
    recall : float
        Share of the needles' tokens that were selected.
    complete : bool
        True if every token of the answers was selected, so that the target can still be right.
    rank : int, optional
        Rank of the needle's best chunk by score, 1 for the highest; the worst of several needles. None where no chunk
        of a needle has a score.
    margin : float, optional
        Difference of that chunk's score to the best chunk without selected tokens, as a share of the range of scores.
        None where `rank` is, or where every chunk has selected tokens.
    """

    recall: float
    complete: bool
    rank: int | None
    margin: float | None


def evidence_recall(selection: Selection, evidence: Evidence) -> EvidenceRecall | None:
    """Compare a selection with the evidence; return None where there is no needle."""
    if not evidence.needles:
        return None
    selected, bounds, scores = selection.selected, selection.bounds, selection.chunk_scores.astype(np.float64)
    known = np.isfinite(scores)
    left_out = known & (np.add.reduceat(selected, bounds[:-1]) == 0)
    touched = [np.add.reduceat(needle, bounds[:-1]) > 0 for needle in evidence.needles]
    worst = min(np.where(known & hit, scores, -np.inf).max() for hit in touched)  # of the best chunks of all needles
    rank = int((scores[known] > worst).sum()) + 1 if np.isfinite(worst) else None
    margin = None
    if rank is not None and left_out.any():
        score_range = float(np.ptp(scores[known]))
        margin = float((worst - scores[left_out].max()) / score_range) if score_range else 0.0
    recall = float(np.mean([selected[needle].mean() for needle in evidence.needles]))
    return EvidenceRecall(recall, bool(selected[evidence.values].all()), rank, margin)
