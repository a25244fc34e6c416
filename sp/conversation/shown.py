"""Shown: what stands at each place of a transcript for the target, where a selection has tokens read in part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Ints
from sp.conversation.slots import PART
from sp.gguf import Tokenizer
from sp.prompt import TokenisedPrompt
from sp.selection import Reading


@dataclass(frozen=True)
class Shown:
    """What new tokens are read as.

    Parameters
    ----------
    ids : int64 (n,)
        The transcript, but where a part of a token stands in its place and in those behind it.
    source : int64 (n,)
        Which token of the transcript each is; `PART` for what continues the part of one before.
    kept : boolean array (n,)
        What is read.
    """

    ids: Ints
    source: Ints
    kept: Bools

    @classmethod
    def of(cls, prompt: TokenisedPrompt, kept: Bools, read: Reading, tokenizer: Tokenizer) -> Shown:
        """Kept tokens (n,), and of those that are read in part only that, see `Selection`.

        A part that needs more places than are free behind its token stays the token it was. Places before it are not
        taken: a transcript that goes another way from the token on must not have them.

        Examples
        --------
        >>> import sp
        >>> tokenizer = sp.load(device="cpu").target.tokenizer
        >>> prompt = sp.Prompt("x]\\n").tokenise(tokenizer)  # "]\\n" is a token
        >>> shown = Shown.of(prompt, np.ones(len(prompt), bool), {len(prompt) - 1: ((2, 3),)}, tokenizer)
        >>> tokenizer.decode(shown.ids[shown.kept])
        'x\\n'
        """
        ids, source, taken = prompt.ids.copy(), np.arange(len(prompt)), kept.copy()
        raw = prompt.prompt.text.encode() if read else b""
        for token, ranges in sorted(read.items()):
            text = b"".join(raw[start:end] for start, end in ranges)
            new = tokenizer.encode(text.decode(), [(0, len(text))], begins=False).ids
            end = token + len(new)
            if end <= len(ids) and not taken[token + 1 : end].any():
                ids[token:end], source[token + 1 : end], taken[token:end] = new, PART, True
        return cls(ids, source, taken)
