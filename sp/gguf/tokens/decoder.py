"""Tokens of an answer to bytes, one by one."""

from __future__ import annotations

from collections.abc import Callable, Set


class Decoder:
    """Hands out what each token stands for where it stands.

    Parameters
    ----------
    token_bytes : callable
        Bytes of a token anywhere.
    added : set of int
        Special tokens.
    space_prefix : bool
        Whether a space was written in front of texts, which is none of theirs.
    fresh : bool
        Whether the first token begins a text.

    Examples
    --------
    >>> decoder = Decoder({0: b"<s>", 1: b" one", 2: b" two"}.__getitem__, {0}, space_prefix=True)
    >>> [decoder.push(token) for token in (1, 2, 0, 2)]
    [b'one', b' two', b'<s>', b'two']
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], added: Set[int], space_prefix: bool, *, fresh: bool = True
    ) -> None:
        self._token_bytes, self._added = token_bytes, added
        self._space_prefix, self._fresh = space_prefix, fresh

    def push(self, token: int) -> bytes:
        """Bytes of one more token, perhaps a part of a character; PromptError outside the vocabulary."""
        raw, fresh, self._fresh = self._token_bytes(token), self._fresh, token in self._added
        return raw.removeprefix(b" ") if fresh and not self._fresh and self._space_prefix else raw
