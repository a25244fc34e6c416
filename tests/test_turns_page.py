"""docs/conversations.md shows what rows of `sp eval turns` come to."""

from __future__ import annotations

from pathlib import Path

import pytest
from turns_page import PAGE, ROOT, files, table_of


@pytest.mark.parametrize("path", files(), ids=lambda path: path.parts[-3])
def test_the_page_shows_the_table_of_every_file_of_rows(path: Path) -> None:
    page, lines = PAGE.read_text(), table_of(path)
    assert "\n".join(lines) in page, "run tests/turns_page.py and put its table there"
    assert str(path.relative_to(ROOT)) in page
    assert len(lines) > 4
