"""docs/conversations.md shows what rows of `sp eval turns` come to."""

from __future__ import annotations

import pytest
from turns_page import PAGE, files, tables


@pytest.mark.parametrize(("name", "lines"), list(tables()), ids=[path.parts[-3] for path in files()])
def test_the_page_shows_the_table_of_every_file_of_rows(name: str, lines: list[str]) -> None:
    page = PAGE.read_text()
    assert "\n".join(lines) in page, "run tests/turns_page.py and put its table there"
    assert name in page
    assert len(lines) > 4
