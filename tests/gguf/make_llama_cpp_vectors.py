"""Writes llama-cpp.json: what llama.cpp makes of texts with small vocabularies of our own.

Run by hand where the package llama-cpp-python (0.3.36 made the present file) is installed beside this one:
``python tests/gguf/make_llama_cpp_vectors.py``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

from llama_cpp import Llama  # type: ignore[import-not-found]
from llama_cpp_cases import FILE, LLAMA, cases

from sp.gguf import GGUFWriter

LINES = (
    *("", " ", "  ", "\n", " \n\n  \n", "\t\t x", "Hello world", " Hello  World!\r\n", "it's IT'S don't we'll 'tis"),
    *("1 12 123 1234567", "3.14+2=5.14", "x=[1,2];//done\n", "the quiet harbour", "naïve café", "Привет, мир"),
    *("漢字かな交じり文。", "한국어 텍스트", "🦙🦙 llama\ufe0f", "\x00\x1c\x85\xa0", "a\u2028b", "…—“quoted”"),
    *(
        "HTTPServer camelCase snake_case",
        "</s><s>[INST]",
        "<|im_start|>user\nhi<|im_end|>",
        "<0x0A>",
        "<unk>",
        "<s>one",
    ),
    *("a</s> b<s>  c", "needle in a haystack " * 3, "$100 ~ `code` ^_^ | x<y>z", "<|eot_id|>\n\n<|end_header_id|>x"),
)


WORDS = (
    *("the", "of", "and", "harbour", "quiet", "prefill", "12", "2024", "3.5", ",", ".", "!", "?", "\n", "\n\n", "é"),
    *("狐", "🦙", "'s", "'LL", "_", "--", "(", ")", "\t", "#", "=", "</s>", "<s>"),
)


def texts() -> list[str]:
    """The lines, and words and marks in random order."""
    rng = random.Random(16)
    drawn = ("".join(rng.choice(WORDS) + rng.choice(("", " ", "  ")) for _ in range(12)) for _ in range(12))
    return [*LINES, *drawn]


def main() -> None:
    found: dict[str, list[list[list[int]]]] = {}
    with TemporaryDirectory() as folder:
        for name, metadata in cases().items():
            path = Path(folder) / "m.gguf"
            GGUFWriter(path, {**metadata, **LLAMA}).write()
            model = Llama(str(path), vocab_only=True, verbose=False)
            found[name] = [
                [model.tokenize(text.encode(), add_bos=framed, special=framed) for framed in (False, True)]
                for text in texts()
            ]
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(ids, separators=(',', ':'))}" for name, ids in found.items())
    FILE.write_text(f'{{"texts": {json.dumps(texts(), ensure_ascii=False)},\n{rows}}}\n')


if __name__ == "__main__":
    main()
