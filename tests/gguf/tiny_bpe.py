"""The tokenizer of tiny-bpe.gguf with every pattern, pieces of text that are hard on it, and a check of its spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sp.gguf import GGUFFile, Tokenizer
from sp.gguf.pretokenizers import PRE_TOKENIZERS

FOLDER = Path(__file__).parent


def load_metadata() -> dict[str, Any]:
    with GGUFFile.open(FOLDER / "tiny-bpe.gguf") as file:
        return dict(file.metadata)


METADATA = load_metadata()
TOKENS: list[str] = METADATA["tokenizer.ggml.tokens"]
ADDED = [t for t, kind in zip(TOKENS, METADATA["tokenizer.ggml.token_type"], strict=True) if kind in (3, 4)]
NO_BOS = {"tokenizer.ggml.add_bos_token": False}
TOKENIZERS = {pre: Tokenizer.from_metadata({**METADATA, **NO_BOS, "tokenizer.ggml.pre": pre}) for pre in PRE_TOKENIZERS}
QWEN2 = TOKENIZERS["qwen2"]


# Text that hits the pattern's corners far more often than arbitrary Unicode would.
corners = st.sampled_from(
    [
        *(
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "'",
            "'s",
            "'LL",
            "a",
            "Z",
            "ab",
            "1",
            "٢",
            "½",
            "!",
            "...",
            "\u0301",
            "\u093e",
        ),
        *(
            "é",
            "е",
            "狐",
            "🦙",
            "👩‍👧",
            "\u200d",
            "\ufe0f",
            "\xa0",
            "\u3000",
            "\u2028",
            "\x85",
            "\x00",
            "\x1c",
            "\ufeff",
        ),
        *(*ADDED, "<|im_", "_end|>", "prefill", " special", "needle"),
    ]
)


def check_spans(tokenizer: Tokenizer, text: str) -> None:
    """Spans tile the bytes, and each holds what its token stands for."""
    raw = text.encode()
    encoding = tokenizer.encode(text)
    assert encoding.ids.dtype == encoding.spans.dtype == np.int64
    assert encoding.spans.shape == (len(encoding), 2)
    assert [0, *encoding.spans[:, 1]] == [*encoding.spans[:, 0], len(raw)]
    decoder = tokenizer.decoder()
    for token, (start, end) in zip(encoding.ids.tolist(), encoding.spans.tolist(), strict=True):
        assert raw[start:end] == decoder.push(token)
    assert tokenizer.decode(encoding.ids) == text
