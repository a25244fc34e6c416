"""SentencePiece merging the slow way, from its definition: an oracle for the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

SPACE = "\u2581"
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6


def encode_part(text: str, tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[int]:
    """Ids of a text without special tokens: look at every pair of neighbours, merge the best, look again."""
    made = {t: i for i, t in enumerate(tokens) if types[i] not in (UNKNOWN, CONTROL, USER_DEFINED, BYTE) and t}
    symbols = list(text)
    while True:
        found = [(-scores[made[a + b]], at) for at, (a, b) in enumerate(zip(symbols, symbols[1:])) if a + b in made]  # noqa: B905, RUF007
        if not found:
            break
        _, at = min(found)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [made[symbol]] if symbol in made else [tokens.index(f"<0x{byte:02X}>") for byte in symbol.encode()]
    return ids


def encode(
    text: str, tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], *, prefix: bool = True
) -> list[int]:
    """Ids of a text: special tokens first and longest, a space in front of what follows one."""
    special = [t for i, t in enumerate(tokens) if types[i] in (UNKNOWN, CONTROL, USER_DEFINED) and t]
    ids: list[int] = []
    at = 0
    while at < len(text):
        hits = [(text.find(token, at), -len(token), token) for token in special if token in text[at:]]
        start, _, token = min(hits) if hits else (len(text), 0, "")
        if text[at:start]:
            part = text[at:start].replace(" ", SPACE)
            ids += encode_part(SPACE * prefix + part, tokens, scores, types)
        if token:
            ids.append(tokens.index(token))
        at = start + len(token)
    return ids
