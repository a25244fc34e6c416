"""Pages as a browser's parser sees them: tags with attributes, and text."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--"


class Read(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def text(self) -> str:
        return "".join(self.said)
