"""Text of Debian's documentation packages: python extract.py DEBS OUT/corpus.jsonl

`DEBS` is a folder with the packages of `packages.txt`, from ``apt-get download``. Needs dpkg-deb, mandoc, col and lxml.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lxml.html

WANTED = [f"*{part}*" for part in ("usr/share/doc", "usr/share/man", "usr/share/info", "/vim", "/emacs", "/games")]
WANTED += ["*.txt", "*.html", "*.pod", "*.cfg"]
OPENS = set(
    "p div li tr br h1 h2 h3 h4 h5 h6 pre dt dd table section blockquote ul ol dl title".split()  # noqa: SIM905
)
APART = {"p", "h1", "h2", "h3", "h4", "pre"}
SKIPPED = {"script", "style", "head", "nav", "noscript"}
TONGUES = "de|fr|es|ja|it|pt|pt_BR|ru|zh_CN|nl|pl|cs|sv|hu|ko|ca|uk|hr|el|da|fi|nb|ro|tr|lt|sk|sl|zh_TW|vi|id|gl"
FOREIGN = re.compile(rf"/({TONGUES})/|\.({TONGUES}|zh-cn|pt-br)(\.[a-z-]+)?\.(html|txt)")
INDEXES = re.compile(r"genindex|search\.html|copyright$|_modules|py-modindex|index-all")
NEWS = re.compile(r"/(changelog|NEWS|README|FAQ)[^/]*\.gz$", re.IGNORECASE)
MOST_A_PACKAGE, MOST_A_FILE, LEAST = 2_500_000, 400_000, 1500
MOST_MAN_PAGES = 120


def plain(element: object, pre: bool = False) -> Iterator[str]:
    """Text of an HTML element, with lines where blocks begin and end."""

    def spaced(text: str | None, kept: bool) -> str:
        return (text or "") if kept else re.sub(r"\s+", " ", text or "")

    tag = element.tag.lower() if isinstance(element.tag, str) else ""
    if tag and tag not in SKIPPED:
        inside = pre or tag == "pre"
        edge = "\n\n" if tag in APART else "\n" if tag in OPENS else ""
        yield edge + spaced(element.text, inside)
        for child in element:
            yield from plain(child, inside)
        yield edge + ("  " if tag in ("td", "th") else "")
    yield spaced(element.tail, pre)


def text_of(path: Path) -> str | None:
    """Text of a file, None of one that is no document."""
    name = str(path)
    if name.endswith(".html"):
        text = re.sub(r"[ \t]+\n", "\n", "".join(plain(lxml.html.fromstring(path.read_bytes()))))
        return re.sub(r"\n{3,}", "\n\n", text).strip()
    if "/man/man" in name and name.endswith(".gz"):
        command = f'gunzip -c "{path}" | mandoc -Tutf8 -O width=100 2> /dev/null | col -b'
        return subprocess.run(command, shell=True, capture_output=True, timeout=20).stdout.decode("utf8", "replace")
    if name.endswith((".info.gz", ".txt.gz")) or "/info/" in name or NEWS.search(name):
        return gzip.open(path).read().decode("utf8", "replace")
    if name.endswith((".txt", ".pod")):
        return path.read_text("utf8", "replace")
    if name.endswith(".cfg") and "wesnoth" in name:  # what characters of the game say
        return "\n".join(re.findall(r'"((?:[^"]|"")+)"', path.read_text("utf8", "replace")))
    return None


def main() -> None:
    debs, out = Path(sys.argv[1]), Path(sys.argv[2])
    rng = random.Random(1)
    with out.open("w") as written, tempfile.TemporaryDirectory() as folder:
        for deb in sorted(debs.glob("*.deb")):
            package = deb.name.partition("_")[0]
            root = Path(folder) / package
            root.mkdir()
            tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", root, "--wildcards", *WANTED], input=tar, stderr=subprocess.DEVNULL)
            files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
            rng.shuffle(files)
            total, pages = 0, 0
            for path in files:
                pages += "/man/man" in str(path)
                if total > MOST_A_PACKAGE or FOREIGN.search(str(path)) or INDEXES.search(str(path)):
                    continue
                if pages > MOST_MAN_PAGES and "/man/man" in str(path):
                    continue
                try:
                    text = text_of(path)
                except (OSError, RecursionError, ValueError, lxml.etree.LxmlError, subprocess.SubprocessError):
                    continue
                text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text or "")[:MOST_A_FILE]
                if len(text) >= LEAST and sum(map(str.isascii, text)) >= 0.95 * len(text):
                    total += len(text)
                    written.write(
                        json.dumps({"pkg": package, "name": str(path.relative_to(root)), "text": text}) + "\n"
                    )
            print(package, total)


if __name__ == "__main__":
    main()
