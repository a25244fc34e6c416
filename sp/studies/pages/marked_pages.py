"""Pages in which records are told: tables between marks, written anew and never edited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sp.errors import ConfigError
from sp.studies.pages.report import find_sources
from sp.studies.tables.page import fill, marked
from sp.studies.tables.record_fields import newest_checked
from sp.trace import write_atomic


def write_pages(paths: Sequence[Path], pages: Iterable[Path]) -> list[Path]:
    """Put what the records below `paths` say between the marks of `pages`, see `sp.studies.tables.page`.

    `paths`: records of `sp bench`, or folders of them; `pages`: Markdown pages; of a folder those in it, at any depth,
    that have a mark.

    Returns
    -------
    list of Path
        The pages that were written. All are made before the first is written.

    Raises
    ------
    ConfigError
        See `find_sources` and `fill`; also when a page cannot be read, or no page of a folder has a mark.
    """
    records = [record for path in find_sources(paths).records for record in newest_checked(path)]
    texts: dict[Path, str] = {}
    for page in pages:
        if not page.is_dir():
            texts[page] = _read(page)
            continue
        inside = {each: text for each in sorted(page.rglob("*.md")) if marked(text := _read(each))}
        if not inside:
            raise ConfigError(f"no page below {page} has marks of a part made from records; name another in --pages")
        texts |= inside
    made = {page: fill(text, records) for page, text in texts.items()}
    return [write_atomic(page, text.encode()) for page, text in made.items()]


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {page}: {error.strerror}; name a page or a folder in --pages") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{page} is no UTF-8 text; name a page of Markdown in --pages") from None
