"""Every link of README, CONTRIBUTING and docs leads to a file, and every anchor to a heading, that is there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from pages import ROOT, pages

LINK = re.compile(r"\]\(<?([^)\s>]+)>?\)")
TREE = re.compile(r"```\{toctree\}\n(.*?)```", re.S)


@cache
def anchors(page: Path) -> set[str]:
    """Headings as GitHub and MyST name them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_lead_somewhere() -> None:
    wrong, seen = [], 0
    for page in pages():
        text = re.sub(r"^```(?!\{).*?^```$|`[^`\n]*\]\([^`\n]*`", "", page.read_text(), flags=re.M | re.S)
        for link in LINK.findall(text):
            if re.match(r"https?:|mailto:", link):
                continue
            path, _, anchor = link.partition("#")
            to = (page.parent / path).resolve() if path else page
            seen += 1
            if not to.exists():
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
            elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                wrong.append(f"{page.relative_to(ROOT)}: {link} is no heading of it")
    assert not wrong, "\n".join(wrong)
    assert seen > 100


def test_every_page_of_docs_is_in_the_tree_and_reached_from_the_front_page() -> None:
    wanted = {path for path in pages() if path.is_relative_to(ROOT / "docs")}
    entries = {
        (page.parent / f"{entry}.md").resolve()
        for page in wanted
        for tree in TREE.findall(page.read_text())
        for entry in re.findall(r"^[\w/-]+$", tree, re.M)
    }
    assert wanted - entries == {ROOT / "docs" / "index.md"}
    front = (ROOT / "docs" / "index.md").read_text()
    near = {path.stem for path in wanted if path.parent == ROOT / "docs"} - {"index"}
    assert {f"{name}.md" for name in near} <= set(LINK.findall(front))
