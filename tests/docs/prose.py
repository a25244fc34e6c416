"""Sentences of the documents: text outside code, tables and what a generator writes between marks."""

from __future__ import annotations

import re
from pathlib import Path

MARKED = re.compile(r"<!-- ([\w -]+): made by .*?<!-- end of \1 -->", re.S)
FENCED = re.compile(r"^[ ]*(`{3,})[^\n]*\n.*?^[ ]*\1$", re.M | re.S)
ITEM = re.compile(r"\n(?=\s*(?:[-*]|\d+\.) )")
QUOTED = re.compile(r"^What was trained for what\b.*?(?:\n\s*\n|\Z)", re.M | re.S)
"""What a drafter's file says of its training, word for word: it stands below every ranking of scorers."""
SHORT = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|No|Fig|approx)\.", re.I)


def prose(text: str, tables: bool = False) -> str:
    """Return the text without code blocks, headings, pictures and generated parts; links as their words. Tables are
    left out unless `tables`."""
    text = QUOTED.sub("\n\n", MARKED.sub("\n\n", text))
    text = re.sub(r"<!--.*?-->", "\n\n", FENCED.sub("\n\n", text), flags=re.S)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    if not tables:
        text = re.sub(r"^\s*\|.*$", "\n", text, flags=re.M)
    text = re.sub(r"^(?:#+ .*|\s*[-=]{3,}\s*|<.*>\s*)$", "\n", text, flags=re.M)
    # A piece of code is one word; links may have code as their words, so code goes first.
    text = re.sub(r"`+[^`]+`+", "code", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text: str) -> list[str]:
    """Return the sentences of a page; every item of a list begins one of its own."""
    result = []
    for paragraph in re.split(r"\n\s*\n", prose(text)):
        for item in ITEM.split(paragraph):
            words = " ".join(re.sub(r"^\s*(?:[-*>]|\d+\.) ", "", item).split())
            words = SHORT.sub(r"\1", words)
            result += [one for one in re.split(r"(?<=[.!?])[\"')*_]*\s+", words) if one]
    return result


def count_words(sentence: str) -> int:
    """Return the words of a sentence: runs of characters that hold a letter or a digit."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def long_sentences(page: Path, most: int) -> list[str]:
    """Return the sentences of a page that have more than `most` words, each with its count."""
    found = sentences(page.read_text("utf-8"))
    return [f"{count_words(one)}: {one}" for one in found if count_words(one) > most]
