"""The page at `/`: a chat about a document, what the target read of it, and how long that took."""

from __future__ import annotations

from functools import cache

from sp.page.markup import Html, asset, page, tag

HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",  # which a page cannot say of itself
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
COMPRESS = {"auto": "where it pays", "always": "always", "off": "never"}


@cache
def chat_page() -> str:
    """The whole page; it talks to ``/v1/chat/completions`` of the server it came from, and to nothing else.

    Examples
    --------
    >>> "<textarea" in chat_page()
    True
    """
    return page(
        "sp serve",
        tag("main", tag("h1", "sp serve ", tag("small", "", id="model")), _form(), _talk()),
        styles=(asset("heat.css"), asset("page.css", "sp.serve.http")),
        scripts=(asset("page.js", "sp.serve.http"),),
    )


def _form() -> Html:
    """Document and how it is compressed."""
    choices = (tag("option", said, value=value) for value, said in COMPRESS.items())
    return tag("section",
        tag("label", "Document", for_="document"),
        tag("textarea", id="document", rows=10, spellcheck="false",
            placeholder="Paste a long text here. It goes before your first question."),
        tag("div",
            tag("label", "or a text file ", tag("input", type="file", id="file", accept="text/*,.md,.json,.csv,.log")),
            tag("label", "keep ", tag("input", type="number", id="keep", min="0.5", max="100", step="any"), " %"),
            tag("label", "compress ", tag("select", *choices, id="compress")),
            tag("label", tag("input", type="checkbox", id="only"), " show only kept text"),
            tag("button", "new chat", type="button", id="new"),
            class_="tools"),
        aria_label="Document",
    )  # fmt: skip


def _talk() -> Html:
    """What was said, and what to say next."""
    return tag("section",
        tag("div", id="said", role="log", aria_label="Conversation", tabindex="0"),
        tag("p", "", id="trouble", role="alert"),
        tag("form",
            tag("label", "Question", for_="question"),
            tag("textarea", id="question", rows=2, required=True),
            tag("div", tag("button", "Ask", type="submit", id="ask"),
                tag("button", "Stop", type="button", id="stop", disabled=True), class_="tools"),
            id="form"),
        aria_label="Chat",
    )  # fmt: skip
