"""Pre-tokenizers: the regular expressions that split a text before byte pairs are merged, by their GGUF name.

The names in ``tokenizer.ggml.pre`` and their properties (several patterns in sequence, whole words looked up first, BOS
by default) are those of llama.cpp's ``src/llama-vocab.cpp``. Where it quotes the original pattern of a model's
``tokenizer.json`` next to an adapted one, the original is used, because the model was trained with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PreTokenizer:
    """A rule for splitting text, and the defaults of files that name it. `patterns`: applied in sequence, each to the
    pieces of the one before; `whole_words`: a piece that is a token becomes that token, whatever the merges would yield
    (``ignore_merges``); `add_bos`: prompts begin with BOS unless the file says otherwise."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(suffix: str, digits: str) -> str:
    """Split words where a lower-case letter precedes a capital; the pattern of o200k and of Tekken."""
    head = r"[^\r\n\p{L}\p{N}]?"
    words = f"{head}{_UPPER}*{_LOWER}+{suffix}|{head}{_UPPER}+{_LOWER}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_BLANKS}"


_CASED_LETTERS = (  # the letters that had a case in the Unicode version of DeepSeek LLM's tokenizer
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼ"
    "ιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-"
    "𐳲𑢠-𑣟𞤀-𞥃"
)
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_QWEN2 = PreTokenizer((rf"{_SUFFIX}|{_WORD}|\p{{N}}{_MARKS}{_BLANKS}",))
_LLAMA3 = PreTokenizer((rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}{_MARKS}{_BLANKS}",), whole_words=True, add_bos=True)
_O200K = PreTokenizer((_cased(f"{_SUFFIX}?", r"\p{N}{1,3}"),))
_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "qwen2": _QWEN2,
    "qwen35": PreTokenizer(
        (
            rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_BLANKS}",
        )
    ),
    "llama-bpe": _LLAMA3,
    "tekken": PreTokenizer((_cased("", r"\p{N}"),), whole_words=True, add_bos=True),
    "gpt-4o": _O200K,
    "deepseek-v3": PreTokenizer(
        (
            r"\p{N}{1,3}",
            _CJK,
            rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
            rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*{_BLANKS}",
        )
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": _DIGITS_GPT2,
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "seed-coder": PreTokenizer((rf"{_SUFFIX}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+{_BLANKS}",)),
    **dict.fromkeys(("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _QWEN2),
    **dict.fromkeys(("llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"), _LLAMA3),
    "smaug-bpe": replace(_LLAMA3, whole_words=False, add_bos=False),
    **dict.fromkeys(("llama4", "kanana2"), _O200K),
    **dict.fromkeys(("refact", "starcoder"), _DIGITS_GPT2),
}  # by the name in ``tokenizer.ggml.pre``; names of the same record tokenize alike
