"""docs/models.md says what registries, fixtures and tests say; where it does not, the failure names what is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "models.md"
FACTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import models_page
from sp.gguf.pretokenizers import PRE_TOKENIZERS
from sp.models.drafts.dflash_config import DRAFT_ARCHITECTURES
from sp.models.drafts.dflash import LATER
from sp.models.file.refusals import NEUTRAL
from sp.models.synthetic.shapes import list_shapes
keys = [key for keys, _ in LATER.values() for key in keys]
print(json.dumps({"tables": models_page.tables(), "tokenizers": list(PRE_TOKENIZERS), "neutral": list(NEUTRAL),
                  "drafts": list(DRAFT_ARCHITECTURES), "later": list(LATER), "shapes": list_shapes()}))
"""


@cache
def facts() -> dict[str, Any]:
    """In a process of its own, for other tests register families and formats."""
    given = [sys.executable, "-c", FACTS, str(TESTS)]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def marked(name: str) -> list[str]:
    """Lines of the page between the marks of a table."""
    found = re.search(rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", PAGE.read_text(), re.DOTALL)
    assert found, f"docs/models.md has no marks of {name}"
    return found.group(1).strip().splitlines()


@pytest.mark.parametrize("name", ["families", "formats"])
def test_tables_are_those_of_the_registries(name: str) -> None:
    wanted, found = facts()["tables"][name], marked(name)
    missing = [line for line in wanted if line not in found]
    stale = [line for line in found if line not in wanted]
    anew = ["python tests/models_page.py writes the tables anew; missing:", *missing, "no longer true:", *stale]
    assert found == wanted, "\n".join(anew)


@pytest.mark.parametrize("what", ["tokenizers", "neutral", "drafts"])
def test_names_of_registries_are_all_there(what: str) -> None:
    told = set(re.findall(r"`([^`]+)`", PAGE.read_text()))
    assert not [name for name in facts()[what] if name not in told]


def test_later_drafts_are_named() -> None:
    assert not [name for name in facts()["later"] if name not in PAGE.read_text()]


def test_pairs_are_shapes() -> None:
    named = re.findall(r"--synthetic-(?:target|drafter) ([\w.-]+)", PAGE.read_text())
    assert len(named) == 8
    assert not [name for name in named if name not in facts()["shapes"]]


def test_files_that_the_page_names_are_there() -> None:
    text = PAGE.read_text()
    paths = set(re.findall(r"`(tests/[\w/]+(?:\.py)?)`", text))
    paths |= {f"docs/{path}" for path in re.findall(r"\]\((extending/[\w.]+)\)", text)}
    assert len(paths) >= 10
    assert not [path for path in sorted(paths) if not (TESTS.parent / path).exists()]
    here = {path.name for path in (TESTS / "gpu").iterdir()} | {path.name for path in (TESTS / "gguf").iterdir()}
    assert not [name for name in re.findall(r"`(test_\w+\.py)`", text) if name not in here]
