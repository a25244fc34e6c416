"""Make `tiny-bpe.gguf`, a byte-level BPE of 600 tokens, and `tiny-bpe.json`, texts with their ids.

Run from the repository: ``python tests/gguf/make_tiny_bpe.py``. The vocabulary is trained by the `tokenizers` package;
the ids come from `bpe_reference`, not from the code under test.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from bpe_reference import encode
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from sp.gguf import GGUFWriter

CORPUS = """
Speculative prefill lets a small drafter read the whole of a long prompt and choose what the heavy target reads.
What the drafter doesn't attend to, the target won't see; they'll agree, we've found, when the needle isn't hidden.
One of the special magic numbers for quiet-lantern is: 8301947. What is the special magic number for quiet-lantern?
    def prefill(model, ids, positions, cache, *, chunk=512):\n        return model.head(model.layer(0, x)[-1:])\n
Ein kürzerer Prompt, größere Modelle, schönere Träume. Où est l'aiguille ? Elle est là, à côté de la forêt.
Быстрая коричневая лиса перепрыгивает через ленивую собаку. 素早い茶色の狐がのろまな犬を飛び越える。 🦙🚀 ✅ café ñandú
cafe\u0301 cafe\u0301 n\u0303andu\u0301 n\u0303andu\u0301 नमस्ते दुनिया नमस्ते दुनिया
"""
SPECIALS = {"<|endoftext|>": 3, "<|im_start|>": 3, "<|im_end|>": 3, "<think>": 4, "</think>": 4, "[PAD0]": 5}
TEXTS = [
    "",
    " ",
    "   ",
    "\n\n\t \n",
    "Hello, world!",
    "  leading and trailing  ",
    "I'll say we've won; they'RE late, it's 'round 12:30",
    "quiet-lantern is: 8301947.",
    "def f(x):\r\n\treturn x ** 2  # squared\r\n\r\n",
    "größere Träume, l'aiguille, forêt",
    "Быстрая лиса и собака",
    "素早い狐 jumps over 犬",
    "🦙🚀✅ 👩‍👩‍👧 flag 🇩🇪",
    "cafe\u0301 naïve n\u0303andu\u0301 \u0301start",
    "नमस्ते दुनिया",
    "مرحبا ١٢٣ بالعالم",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_start|><|im_start|>half <|im_st and [PAD0] </think",
    "a\u00a0b\u3000c\u2028d\u0085e\x00f\x1fg",
    "½ ² Ⅷ ৪৫",
]


def main() -> None:
    folder = Path(__file__).parent
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}| ?[\p{L}\p{M}]+| ?[^\s\p{L}\p{M}\p{N}]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        CORPUS.splitlines(keepends=True),
        trainers.BpeTrainer(vocab_size=594, min_frequency=1, initial_alphabet=alphabet, show_progress=False),
    )
    model = json.loads(backend.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), *SPECIALS]
    merges = [" ".join(merge) for merge in model["merges"]]
    types = [1] * (len(tokens) - len(SPECIALS)) + list(SPECIALS.values())
    metadata = {
        "general.architecture": "qwen3",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("[PAD0]"),
        "tokenizer.ggml.add_bos_token": False,
    }
    GGUFWriter(folder / "tiny-bpe.gguf", metadata).write()
    added = [token for token, kind in SPECIALS.items() if kind in (3, 4)]
    vectors = {
        pre: [[text, encode(text, tokens, merges, added, pre == "qwen35")] for text in TEXTS]
        for pre in ("qwen2", "qwen35")
    }
    (folder / "tiny-bpe.json").write_text(json.dumps(vectors, separators=(",", ":")).replace("]],[", "]],\n[") + "\n")


if __name__ == "__main__":
    main()
