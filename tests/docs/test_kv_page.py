"""docs/kv-cache.md says what its records say."""

from __future__ import annotations

import re

import kv_page
import pytest

TEXT = kv_page.PAGE.read_text()


@pytest.mark.parametrize("name", list(kv_page.tables()))
def test_tables_are_those_of_records(name: str) -> None:
    found = re.search(rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", TEXT, re.DOTALL)
    assert found
    anew = "run: PYTHONPATH=tests python tests/kv_page.py"
    assert found.group(1).strip().splitlines() == kv_page.tables()[name], anew
