"""Tokenizer keys damaged at random: what a file may hold that the reader lets through.

A share runs as `test_gguf_tokenizer_fuzz.py`; many more with `fuzz_inputs.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from outcomes import Outcomes

from sp.gguf import Tokenizer
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata

KEY = "tokenizer.ggml."
BASES = [
    tokenizer_metadata("llama", 420, 430),
    tokenizer_metadata("llama-bpe", 300, 330),
    tokenizer_metadata("qwen2", 300, 330),
    {**tokenizer_metadata("deepseek-v3", 300, 330), f"{KEY}bos_token_id": 3},
]
STRINGS = (
    *(
        "",
        " ",
        "\u2581",
        "\u2581\u2581",
        "a",
        "aa",
        "a" * 1024,
        "a" * 1025,
        "é",
        "狐",
        "\0",
        "\x1b[2J",
        "<0x41>",
        "<0x4a>",
    ),
    *("<0xZZ>", "<s>", "</s>", "<|im_end|>", "<|end|>", "Ġ", "Ġa", "ā", "a b", "a  ", " a", "\n", "🦙" * 40, "[UNK]"),
)
NUMBERS = (
    *(0, 1, 2, 3, 4, 5, 6, 7, 255, 259, 299, 300, 429, 430),
    *(-1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1),
)
ODD = (*(None, True, False, 0, -1, 0.5, float("nan"), "", "x" * 9999), *([], ["a"], np.zeros(3), np.zeros(0, np.int32)))
NAMES = (
    "qwen2",
    "qwen35",
    "llama-bpe",
    "gpt-4o",
    "tekken",
    "deepseek-llm",
    "default",
    "smollm",
    "kimi-k2",
    "",
    "x" * 999,
)
TEXT = "The quiet harbour aaaa</s> é狐🦙<|im_end|>\n <0x41> <s>12345\u2581a" + "a" * 300


def _tokens(rng: random.Random, value: Any) -> Any:
    value = list(value)
    at, other = rng.randrange(len(value)), rng.randrange(len(value))
    change = rng.randrange(6)
    if change == 0:
        value[at] = rng.choice(STRINGS)
    elif change == 1:
        value[at] = value[at] + rng.choice((*STRINGS, value[other]))
    elif change == 2:
        value[at], value[other] = value[other], value[at]
    elif change == 3:
        del value[at : at + rng.randrange(1, 20)]
    elif change == 4:
        value.insert(at, rng.choice((value[other], *STRINGS)))
    else:
        value[at] = value[at][: rng.randrange(len(value[at]) + 1)]
    return value


def _numbers(rng: random.Random, value: Any) -> Any:
    value = np.array(value)
    at = rng.randrange(len(value))
    change = rng.randrange(6)
    if change == 0 and value.dtype.kind == "f":
        value[at] = rng.choice((0.0, -0.0, 1e38, -1e38, float("inf"), float("nan"), 1e-45))
    elif change <= 1:
        value[at] = np.array(rng.choice((-1, 0, 1, 2, 3, 4, 5, 6, 7, 99))).astype(value.dtype)
    elif change == 2:
        value[at:] = rng.choice((0, 1, 2, 3, 4, 5, 6))
    elif change == 3:
        value = value[: rng.randrange(len(value))]
    elif change == 4:
        value = np.nan_to_num(value).astype(rng.choice((np.float32, np.float64, np.int64, np.uint8, np.int8)))
    else:
        value = np.append(value, value[:1])
    return value


def mutated(rng: random.Random) -> dict[str, Any]:
    """One of the bases with one to four keys changed."""
    metadata = dict(rng.choice(BASES))
    changes: dict[str, Callable[[random.Random, Any], Any]] = {
        "tokens": _tokens,
        "merges": _tokens,
        "scores": _numbers,
        "token_type": _numbers,
        "model": lambda rng, _: rng.choice(("gpt2", "llama", "bert", "t5", "rwkv", "none", "")),
        "pre": lambda rng, _: rng.choice(NAMES),
        **dict.fromkeys(
            [f"{name}_token_id" for name in ("bos", "eos", "eot", "eom", "padding")], lambda rng, _: rng.choice(NUMBERS)
        ),
        **dict.fromkeys(
            ("add_bos_token", "add_eos_token", "add_space_prefix"), lambda rng, _: rng.choice((True, False))
        ),
    }
    for _ in range(rng.randint(1, 4)):
        name = rng.choice(list(changes))
        value = metadata.get(KEY + name)
        if rng.random() < 0.1:
            metadata[KEY + name] = rng.choice(ODD)
        elif changes[name] in (_tokens, _numbers):
            if isinstance(value, list | np.ndarray) and len(value) and _strings(value) == (changes[name] is _tokens):
                metadata[KEY + name] = changes[name](rng, value)
        else:
            metadata[KEY + name] = changes[name](rng, value)
    return {key: value for key, value in metadata.items() if value is not None}


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def read(metadata: dict[str, Any]) -> None:
    """Encode with spans that tile, and decode any id."""
    tokenizer = Tokenizer.from_metadata(metadata, "m.gguf")
    encoding = tokenizer.encode(TEXT, [(4, 40)], framed=True)
    assert [0, *encoding.spans[:, 1]] == [*encoding.spans[:, 0], len(TEXT.encode())]
    tokenizer.decode(range(tokenizer.vocab_size))
    assert tokenizer.eos_ids <= set(range(tokenizer.vocab_size))


def try_many(count: int, seed: int) -> Outcomes:
    """So many mutations; what became of them."""
    rng, outcomes = random.Random(seed), Outcomes()
    for _ in range(count):
        metadata = mutated(rng)
        outcomes.meet([lambda metadata=metadata: read(metadata)], lambda metadata=metadata: str(metadata))
    return outcomes
