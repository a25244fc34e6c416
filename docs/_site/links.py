"""Links of a page to what lies beside the documents: files become downloads, folders their names."""

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
DOCS = Path(__file__).parents[1]


def setup(app):
    """As an extension of Sphinx."""
    app.connect("source-read", outside)
    return {"parallel_read_safe": True}


def outside(app, name, source):
    """Of Sphinx's event `source-read`: `source` is a list of one text."""
    page = Path(app.env.doc2path(name))

    def link(found):
        text, to = found[1], (page.parent / found[2]).resolve()
        if to.is_relative_to(DOCS) and to.suffix != ".html":
            return found[0]
        return f"[{text}](<path:{found[2]}>)" if to.is_file() else text

    source[0] = LINK.sub(link, source[0])
