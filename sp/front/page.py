"""The front's page: the last requests, what went on of them, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sp.front.history import Change, ShortenedRequest
from sp.page.markup import Html, asset, page, tag

LONGEST = 400  # characters of a passage that was left out which the page shows, half of them from its end


def changes_page(upstream: str, outcomes: Sequence[ShortenedRequest], show: bool) -> str:
    """The whole page.

    >>> "no request yet" in changes_page("http://127.0.0.1:8080", [], True)
    True
    """
    if not show:
        shown: list[Html] = [tag("p", "Texts are not shown; start without --no-page to see them.")]
    elif not outcomes:
        shown = [tag("p", "There was no request yet whose texts were shortened.")]
    else:
        shown = [_request(number, outcome) for number, outcome in enumerate(outcomes)]
    head = tag("h1", "sp front ", tag("small", f"before {upstream}"))
    key = tag("p", "Text that went on, ", tag("del", "text that was left out"), ", ", tag("ins", "what came back"), ".")
    return page("sp front", tag("main", head, key, *shown), styles=(asset("style.css"), asset("front.css", "sp.front")))


def _request(number: int, outcome: ShortenedRequest) -> Html:
    told = f"{outcome.tokens:,} tokens came, {outcome.sent:,} went on"
    if outcome.recalled:
        told += f"; passages that came back: {outcome.recalled}"
    if outcome.seconds:
        told += f"; the drafter took {outcome.seconds:.2f} s"
    title = "The last request" if not number else f"{number} before it"
    return tag("section", tag("h2", title), tag("p", told), *map(_change, outcome.changes))


def _change(change: Change) -> Html:
    size, kept = len(change.text.encode()), sum(end - start for start, end in change.kept)
    summary = tag("summary", f"{change.kind}: {kept:,} of {size:,} bytes went on")
    back = [tag("ins", change.restored)] if change.restored else []
    return tag("details", summary, tag("pre", *back, *_pieces(change)), open=True)


def _pieces(change: Change) -> Iterator[Html | str]:
    """The text, what was left out of it marked and, where it is long, cut."""
    raw, last = change.text.encode(), 0
    for start, end in [*change.kept, (len(raw), len(raw))]:
        if last < start:
            gone = raw[last:start].decode(errors="replace")
            if len(gone) > LONGEST:
                half = LONGEST // 2
                gone = f"{gone[:half]}\n[{len(gone) - LONGEST:,} characters more]\n{gone[-half:]}"
            yield tag("del", gone)
        yield raw[start:end].decode(errors="replace")
        last = end
