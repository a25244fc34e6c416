"""Vocabularies of any size, built by rule, and chat templates for them.

256 bytes, then pairs of lower-case letters, pairs after a space, and joins of two pairs until the vocabulary is full;
English text takes about three characters per token, and the file opens at the cost of a real one. Special tokens have
the names and, in the published shapes, the ids of the Qwen models, of gpt-oss, of Llama 3 and of Llama 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from string import ascii_lowercase

import numpy as np

from sp.errors import ConfigError
from sp.gguf import Value
from sp.gguf.pretokenizers import PRE_TOKENIZERS
from sp.gguf.tokens.byte_pair import byte_alphabet
from sp.gguf.tokens.sentencepiece import SPACE
from sp.gguf.vocabulary import BYTE, CONTROL, MERGED_PIECES, NORMAL, SENTENCEPIECE, UNKNOWN, UNUSED, USER_DEFINED

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_HEADERS = (
    "{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_BRACKETS = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %} {{ message['content'] }}</s>"
    "{% else %}[INST] {{ message['content'] }} [/INST]{% endif %}{% endfor %}"
)
_CHANNELS = (
    "{% for message in messages %}<|start|>{{ message['role'] }}{% if message['role'] == 'assistant' %}"
    "<|channel|>final{% endif %}<|message|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


@dataclass(frozen=True)
class _Special:
    """Special tokens of byte-pair vocabularies, in the order of their ids, which follow the text tokens."""

    control: tuple[str, ...]
    added: tuple[str, ...]
    end: str
    padding: str
    template: str
    begin: str | None = None


_QWEN = _Special(
    (
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
        *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
        *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    ),
    (
        *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
        *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    ),
    end="<|im_end|>",
    padding="<|endoftext|>",
    template=CHATML,
)
_LLAMA3 = _Special(
    (
        *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
        *("<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
    ),
    (),
    end="<|eot_id|>",
    padding="<|finetune_right_pad_id|>",
    template=_HEADERS,
    begin="<|begin_of_text|>",
)
_HARMONY = _Special(
    (
        *("<|startoftext|>", "<|endoftext|>", "<|reserved_200000|>", "<|reserved_200001|>", "<|return|>"),
        *("<|constrain|>", "<|reserved_200004|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>"),
        *("<|reserved_200009|>", "<|reserved_200010|>", "<|reserved_200011|>", "<|call|>"),
        *(f"<|reserved_{number}|>" for number in range(200013, 200018)),
        "<|endofprompt|>",
    ),
    (),
    end="<|return|>",
    padding="<|endoftext|>",
    template=_CHANNELS,
)
_SPACE = "Ġ"  # how the byte alphabet writes a space


def tokenizer_metadata(pre: str, text_tokens: int, vocab: int) -> dict[str, Value]:
    """Return the ``tokenizer.*`` keys of a vocabulary of `vocab` tokens, the first `text_tokens` of them ordinary.

    `pre`: pre-tokenizer, one of `PRE_TOKENIZERS`, `SENTENCEPIECE` or `MERGED_PIECES`. Those of Llama 3 and gpt-oss come
    with their special tokens, the others with Qwen's. `text_tokens`: bytes and merged tokens; the special tokens start
    at this id. In vocabularies of pieces the special tokens come first and are included. `vocab`: rows of the
    embedding; the rows after the special tokens are padding. ConfigError if the sizes do not fit: too few text tokens
    for all bytes, more than the rule can make, or no room for the special tokens.

    >>> keys = tokenizer_metadata("qwen2", 1000, 1100)
    >>> len(keys["tokenizer.ggml.tokens"]), keys["tokenizer.ggml.merges"][:2], keys["tokenizer.ggml.eos_token_id"]
    (1100, ['a a', 'a b'], 1002)
    >>> keys = tokenizer_metadata("llama", 1000, 1000)
    >>> keys["tokenizer.ggml.tokens"][:4], keys["tokenizer.ggml.tokens"][-3:]
    (['<unk>', '<s>', '</s>', '<0x00>'], ['|', '}', '~'])
    """
    if pre in (SENTENCEPIECE, MERGED_PIECES):
        return _pieces(pre, text_tokens, vocab)
    by_pre = {"llama-bpe": _LLAMA3, "gpt-4o": _HARMONY}
    same_rule = (tokens for name, tokens in by_pre.items() if PRE_TOKENIZERS[pre] == PRE_TOKENIZERS[name])
    named = next(same_rule, _QWEN)
    special = [*named.control, *named.added]
    merges = _merges_for(text_tokens, 256, len(special), vocab)
    alphabet = [chr(code) for code in byte_alphabet()]
    tokens = [*alphabet, *(first + second for first, second in merges), *special]
    # Control tokens are never spelled by text, user-defined ones are.
    types = [NORMAL] * text_tokens + [CONTROL] * len(named.control) + [USER_DEFINED] * len(named.added)
    begin = {} if named.begin is None else {"tokenizer.ggml.bos_token_id": tokens.index(named.begin, text_tokens)}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + _padding(len(tokens), vocab),
        "tokenizer.ggml.token_type": types + [UNUSED] * (vocab - len(tokens)),
        "tokenizer.ggml.merges": [f"{first} {second}" for first, second in merges],
        **begin,
        "tokenizer.ggml.eos_token_id": tokens.index(named.end, text_tokens),
        "tokenizer.ggml.padding_token_id": tokens.index(named.padding, text_tokens),
        "tokenizer.ggml.add_bos_token": named.begin is not None,
        "tokenizer.chat_template": named.template,
    }


def _pieces(model: str, text_tokens: int, vocab: int) -> dict[str, Value]:
    """Return the keys of a vocabulary of pieces: the same merges, listed or by score, single characters last, as in
    SentencePiece."""
    special, singles = ["<unk>", "<s>", "</s>"], [SPACE, *map(chr, range(0x21, 0x7F))]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    merges = _merges_for(text_tokens, len(special) + 256 + len(singles), 0, vocab)
    joined = [(first + second).replace(_SPACE, SPACE) for first, second in merges]
    tokens = [*special, *bytes_, *joined, *singles]
    merge_lines = [f"{first} {second}".replace(_SPACE, SPACE) for first, second in merges]
    # SentencePiece merges by score: earlier merges have higher ones.
    ranks = np.maximum(np.arange(vocab) - len(special) - 256, 0)
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens + _padding(len(tokens), vocab),
        "tokenizer.ggml.scores": (-ranks).astype(np.float32),
        **({"tokenizer.ggml.merges": merge_lines} if model == MERGED_PIECES else {}),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * (len(joined) + len(singles))
        + [UNUSED] * (vocab - len(tokens)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": _BRACKETS,
    }


def _merges_for(text_tokens: int, base: int, special: int, vocab: int) -> list[tuple[str, str]]:
    """Return the merges that fill `text_tokens` after `base` other tokens; ConfigError if that does not fit."""
    merges = list(islice(_merges(), max(text_tokens - base, 0)))
    if text_tokens != base + len(merges) or text_tokens + special > vocab:
        raise ConfigError(f"no synthetic vocabulary of {text_tokens} text tokens in {vocab}")
    return merges


def _padding(used: int, vocab: int) -> list[str]:
    return [f"[PAD{i}]" for i in range(used, vocab)]


def _merges() -> Iterator[tuple[str, str]]:
    """Yield pairs of tokens to merge; each makes a new token out of earlier ones."""
    pairs = ["".join(letters) for letters in product(ascii_lowercase, repeat=2)]
    yield from product(ascii_lowercase, repeat=2)
    yield from ((_SPACE, pair) for pair in pairs)
    yield from ((_SPACE, letter) for letter in ascii_lowercase)
    # Diagonals, so that a vocabulary cut short still holds words that start with any letter.
    count = len(pairs)
    yield from ((first, pairs[(i + shift) % count]) for shift in range(count) for i, first in enumerate(pairs))
