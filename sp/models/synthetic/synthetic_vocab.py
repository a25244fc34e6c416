"""A byte-level BPE vocabulary of any size, built by rule, and a ChatML template.

256 bytes, then pairs of lower-case letters, pairs behind a space, and joins of two pairs until the vocabulary is
full; so English text takes some three characters a token and the file opens at the cost of a real one. Special
tokens bear the names and, in the published shapes, the ids of the Qwen models.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from string import ascii_lowercase

from sp.errors import ConfigError
from sp.gguf.tokens.byte_pair import byte_alphabet
from sp.gguf.value_types import Value

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # values of tokenizer.ggml.token_type
CONTROL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
ADDED_TOKENS = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPACE = "Ġ"  # how the byte alphabet writes a space


def tokenizer_metadata(pre: str, text_tokens: int, vocab: int) -> dict[str, Value]:
    """The ``tokenizer.*`` keys of a vocabulary of `vocab` tokens, the first `text_tokens` of them ordinary.

    Parameters
    ----------
    pre : str
        Pre-tokenizer: ``"qwen2"`` or ``"qwen35"``.
    text_tokens : int
        Bytes and merged tokens; the special tokens start at this id.
    vocab : int
        Rows of the embedding; what the special tokens leave is padding.

    Raises
    ------
    ConfigError
        When the sizes do not fit: fewer than 256 text tokens, more than the rule can make, or no room for the
        special tokens.

    Examples
    --------
    >>> keys = tokenizer_metadata("qwen2", 1000, 1100)
    >>> len(keys["tokenizer.ggml.tokens"]), keys["tokenizer.ggml.merges"][:2], keys["tokenizer.ggml.eos_token_id"]
    (1100, ['a a', 'a b'], 1002)
    """
    special = [*CONTROL_TOKENS, *ADDED_TOKENS]
    padding = vocab - text_tokens - len(special)
    merges = list(islice(_merges(), max(text_tokens - 256, 0)))
    if text_tokens != 256 + len(merges) or padding < 0:
        raise ConfigError(f"no synthetic vocabulary of {text_tokens} text tokens in {vocab}")
    alphabet = [chr(code) for code in byte_alphabet()]
    tokens = [*alphabet, *(left + right for left, right in merges), *special]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), vocab)]
    types = [NORMAL] * text_tokens + [CONTROL] * len(CONTROL_TOKENS) + [USER_DEFINED] * len(ADDED_TOKENS)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types + [UNUSED] * padding,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>", text_tokens),
        "tokenizer.ggml.padding_token_id": text_tokens,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def _merges() -> Iterator[tuple[str, str]]:
    """Pairs of tokens to join, earlier ones first; each makes a new token out of earlier ones."""
    pairs = ["".join(letters) for letters in product(ascii_lowercase, repeat=2)]
    yield from product(ascii_lowercase, repeat=2)
    yield from ((_SPACE, pair) for pair in pairs)
    yield from ((_SPACE, letter) for letter in ascii_lowercase)
    # Diagonals, so that a vocabulary cut short still holds words that start with any letter.
    yield from ((left, pairs[(i + shift) % len(pairs)]) for shift in range(len(pairs)) for i, left in enumerate(pairs))
