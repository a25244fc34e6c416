"""How answers are judged: one function a way, filed under a name that examples say."""

from __future__ import annotations

import json
import re
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

from sp.errors import ConfigError

Match = str
"""A name of `MATCHES`."""
Judge = Callable[[str, Sequence[str]], float]
"""Score in [0, 1] of a text, by the answers of an example."""

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
    """A text as SQuAD's ``evaluate-v2.0.py`` compares it (arXiv 1606.05250): no case, punctuation or articles.

    Examples
    --------
    >>> normalised(" The  Eiffel-Tower, a landmark.")
    'eiffeltower landmark'
    """
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
    """Whether one of the answers occurs in the text as whole words, letter case aside.

    Examples
    --------
    >>> any_of_words("I do not know.", ["no"]), any_of_words("No.", ["no"]), any_of_words("It is 30", ["3"])
    (0.0, 1.0, 0.0)
    """
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
    """SQuAD's F1: harmonic mean of precision and recall of words, for the answer where it is best.

    Examples
    --------
    >>> squad_f1("in the old town hall", ["town hall", "a bridge"])
    0.6666666666666666
    """
    return max(_f1(normalised(text).split(), normalised(answer).split()) for answer in answers)


def _f1(said: list[str], asked: list[str]) -> float:
    if not said or not asked:
        return float(said == asked)
    shared = (Counter(said) & Counter(asked)).total()
    return 2 * shared / (len(said) + len(asked))  # 2 pr / (p + r), with p and r written out


@match("regex")
def any_pattern(text: str, answers: Sequence[str]) -> float:
    """Whether one of the answers, as a regular expression of Python, is found in the text.

    They are searched in a process of their own, as some expressions take for ever; ConfigError after five seconds.
    """
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
    """LongBench v2 (``pred.py`` of github.com/THUDM/LongBench, MIT): the letter after "The correct answer is".

    Examples
    --------
    >>> choice("**The correct answer is (C)**, as line 3 says.", ["C"]), choice("C", ["C"])
    (1.0, 0.0)
    """
    said = text.replace("*", "")
    found = next((hit for pattern in CHOICE if (hit := pattern.search(said))), None)
    return float(found is not None and found[1] in answers)


@match("mrcr")
def copied(text: str, answers: Sequence[str]) -> float:
    """OpenAI's MRCR (huggingface.co/datasets/openai/mrcr): 0 unless the text begins with a mark, else likeness.

    The first answer is the mark, the second what is to be copied behind it. White space before the mark is no fault
    here.

    Examples
    --------
    >>> copied("x7Two owls.", ["x7", "Two owls."]), copied("Two owls.", ["x7", "Two owls."])
    (1.0, 0.0)
    """
    mark, wanted = answers
    said = text.lstrip()
    return SequenceMatcher(None, said.removeprefix(mark), wanted).ratio() if said.startswith(mark) else 0.0


@match("mrcr_v2")
def copied_v2(text: str, answers: Sequence[str]) -> float:
    """Google's MRCR v2 (github.com/google-deepmind/eval_hub, Apache-2.0): as `copied`, but what follows the last mark.

    The order of the two texts is theirs, and matters: the likeness of `difflib` is not symmetric.
    """
    mark, wanted = answers
    said = text.strip()
    if not said.startswith(mark):
        return 0.0
    return SequenceMatcher(None, wanted.strip(), said.rpartition(mark)[2].strip()).ratio()
