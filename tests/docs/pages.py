"""README, CONTRIBUTING and all pages of docs, and what stands in their blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MADE = ROOT / "docs" / "reference"
"""Made from the program when the site is built."""
FENCE = re.compile(r"^(?P<run><!-- run -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """One block of code: the page and line it begins at, its language, and whether it is marked to be run."""

    page: Path
    line: int
    kind: str
    text: str
    run: bool


def pages() -> list[Path]:
    """In the order of their paths."""
    inside = [path for path in (ROOT / "docs").rglob("*.md") if not path.is_relative_to(MADE)]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(inside)]


def blocks(*kinds: str) -> Iterator[Block]:
    """All blocks of these languages."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            if found["kind"] in kinds:
                line = text.count("\n", 0, found.start()) + 1
                yield Block(page, line, found["kind"], found["text"], found["run"] is not None)


def commands(text: str) -> Iterator[str]:
    """Command lines of a block, continued lines joined."""
    joined, quotes = "", ""
    for line in text.replace("\\\n", " ").splitlines():
        joined += line + "\n"
        quotes += re.sub(r"\\.|(?<=\s)#.*", "", line)
        if quotes.count("'") % 2 == quotes.count('"') % 2 == 0:
            if joined.strip() and not joined.startswith("#"):
                yield joined.strip()
            joined = quotes = ""
    assert not joined, f"a quote that nothing ends: {joined}"
