"""The front's page: the last requests, with the text that was sent on and the text that was omitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sp.front.history import Change, ShortenedRequest
from sp.page.markup import Html, asset, page, tag

LONGEST = 400  # characters shown of an omitted passage, half of them from its end


def changes_page(upstream: str, outcomes: Sequence[ShortenedRequest], show: bool) -> str:
    """Render the whole page.

    >>> "No request has been shortened" in changes_page("http://127.0.0.1:8080", [], True)
    True
    """
    if not show:
        sections: list[Html] = [tag("p", "Texts are not shown; start without --no-page to see them.")]
    elif not outcomes:
        sections = [tag("p", "No request has been shortened yet.")]
    else:
        sections = [_request(number, outcome) for number, outcome in enumerate(outcomes)]
    head = tag("h1", "sp front ", tag("small", f"before {upstream}"))
    key = tag("p", "Text sent on, ", tag("del", "omitted text"), ", ", tag("ins", "restored passages"), ".")
    styles = (asset("style.css"), asset("front.css", "sp.front"))
    return page("sp front", tag("main", head, key, *sections), styles=styles)


def _request(number: int, outcome: ShortenedRequest) -> Html:
    summary = f"{outcome.tokens:,} tokens received, {outcome.sent:,} sent on"
    if outcome.recalled:
        summary += f"; restored passages: {outcome.recalled}"
    if outcome.seconds:
        summary += f"; drafter: {outcome.seconds:.2f} s"
    title = "The last request" if not number else f"{number} before it"
    return tag("section", tag("h2", title), tag("p", summary), *map(_change, outcome.changes))


def _change(change: Change) -> Html:
    size, kept_bytes = len(change.text.encode()), sum(end - start for start, end in change.kept_ranges)
    summary = tag("summary", f"{change.kind}: {kept_bytes:,} of {size:,} bytes sent on")
    back = [tag("ins", change.restored)] if change.restored else []
    return tag("details", summary, tag("pre", *back, *_pieces(change)), open=True)


def _pieces(change: Change) -> Iterator[Html | str]:
    """Yield the text with its omitted parts marked and, if they are long, shortened."""
    raw, last = change.text.encode(), 0
    for start, end in [*change.kept_ranges, (len(raw), len(raw))]:
        if last < start:
            gone = raw[last:start].decode(errors="replace")
            if len(gone) > LONGEST:
                half = LONGEST // 2
                gone = f"{gone[:half]}\n[{len(gone) - LONGEST:,} characters more]\n{gone[-half:]}"
            yield tag("del", gone)
        yield raw[start:end].decode(errors="replace")
        last = end
