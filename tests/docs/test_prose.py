"""The documents are in plain words: short sentences, and none of the private words that once stood in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, pages
from prose import count_words, long_sentences, prose, sentences

MOST_WORDS = 35
PAGES = [*pages(), ROOT / "CHANGELOG.md"]
PRIVATE = {
    r"stands? beside": "next to",
    r"anew": "again",
    r"reckon\w*": "estimated, calculated",
    r"told apart": "distinguished",
    r"tells? apart": "distinguish",
    r"for there lie": "because ... are there",
    r"leaves? away|left away": "omit",
    r"maths": "matrix products, precision",
    r"guess(?:ing|es) ahead": "speculative decoding",
}
"""Private words, and what to write instead (shared design notes: the field's term wins)."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_sentence_is_long(page: Path) -> None:
    found = long_sentences(page, MOST_WORDS)
    assert not found, f"split these sentences of {name(page)}:\n" + "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_private_word(page: Path) -> None:
    text = prose(page.read_text("utf-8"), tables=True)
    found = [
        f"{word[0]!r}: write {better}"
        for ours, better in PRIVATE.items()
        for word in re.finditer(rf"\b(?:{ours})\b", text, re.I)
    ]
    assert not found, f"{name(page)}: {found}"


def test_what_counts_as_a_sentence() -> None:
    text = "# Head\n\nOne two, e.g. three. Four `five six`\nseven!\n\n| a | table |\n\n"
    text += "- eight [nine ten](eleven.md)\n- twelve\n"
    text += "\n```bash\nsp run. It is code.\n```\n\n<!-- t: made by `sp report` -->\nnot ours.\n<!-- end of t -->\n"
    found = sentences(text)
    assert found == ["One two, e.g three.", "Four code seven!", "eight nine ten", "twelve"]
    assert list(map(count_words, found)) == [4, 3, 3, 1]
