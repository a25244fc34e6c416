"""The vocabulary of a file, checked key by key. Keys and defaults are llama.cpp's (``tokenizer.ggml.*``)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.errors import GGUFError, plain
from sp.gguf.header import Array, Value
from sp.gguf.pretokenizers import PRE_TOKENIZERS
from sp.values import as_list, is_number, preview, whole

SENTENCEPIECE = "llama"
"""Value of ``tokenizer.ggml.model`` in SentencePiece files. They name no pre-tokenizer, so it is used in its place."""

MERGED_PIECES = "gemma4"
"""The same for files whose pieces, spelled as SentencePiece's, are merged in the order of a list."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # values of tokenizer.ggml.token_type
ADDED = (UNKNOWN, CONTROL, USER_DEFINED)  # tokens that are matched in the text by their spelling, before it is split
_FOREIGN = {"bert": "WordPiece", "t5": "unigrams", "rwkv": "RWKV's longest words", "none": "no vocabulary at all"}
MAX_VOCAB = 1 << 20
MAX_ADDED_BYTES = 1 << 20  # text of all special tokens; bounds the automaton that finds them
SHOWN = 40  # most characters of the file's text in an error message
LONGEST_PIECE = 1024  # characters of a SentencePiece token; bounds the cost of each merge


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a file.

    `tokens`: in the byte alphabet for byte pairs, with U+2581 for spaces for SentencePiece; special ones are plain
    text; `types`: the type of each token, as in ``tokenizer.ggml.token_type``; `merges`: of byte pairs and of listed
    pieces, best first; `pre`: the key in `PRE_TOKENIZERS` of the rule that splits the text, or `SENTENCEPIECE`, or
    `MERGED_PIECES`; `ids`: special ids that the file has, by name (eos, eot, eom, bos, padding); `scores`: for
    SentencePiece, the score of each token, the best merged first; `add_bos`, `add_eos`: True if prompts begin with BOS
    or end with EOS; `add_space_prefix`: True if SentencePiece writes a space in front.
    """

    tokens: list[str]
    types: list[int]
    merges: list[tuple[str, str]]
    pre: str
    ids: Mapping[str, int]
    scores: list[float]
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False

    @property
    def sha256(self) -> str:
        """Digest of everything that affects tokenization: equal digests tokenize alike. Unused tokens at the end are
        excluded: models of one family pad a vocabulary to different sizes."""
        size = len(self.tokens)
        while size and self.types[size - 1] == UNUSED:
            size -= 1
        types, scores = map(str, self.types[:size]), map(str, self.scores[:size])
        alike = (name for name, record in PRE_TOKENIZERS.items() if record == PRE_TOKENIZERS.get(self.pre))
        merges = (f"{first} {second}" for first, second in self.merges)
        digest = hashlib.sha256()
        for part in (
            *(next(alike, self.pre), *self.tokens[:size], *types, *merges, *scores),
            *(["bos", str(self.ids["bos"])] if self.add_bos else []),
            *(["eos", str(self.ids["eos"])] if self.add_eos else []),
            *(["space"] if self.add_space_prefix else []),
        ):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()


def read_vocabulary(metadata: Mapping[str, Value], source: str) -> Vocabulary:
    """Check and collect the tokenizer keys of untrusted `metadata`; GGUFError, naming `source`, if one is wrong."""
    checker = _Checker(metadata, source)
    pre = checker.pre_tokenizer()  # first, so that an unsupported tokenizer is reported before its tokens
    pieces, merged = pre == SENTENCEPIECE, pre == MERGED_PIECES
    tokens = checker.tokens()
    types = checker.token_types(tokens, required=pieces or merged)
    if merged:
        checker.check_lengths(tokens, types)
    ids = checker.token_ids(len(tokens), {"bos": 1, "eos": 2} if pieces else {})
    return Vocabulary(
        tokens,
        types,
        [] if pieces else checker.merges(tokens),
        pre,
        ids,
        checker.scores(tokens, types) if pieces else [],
        checker.adds("bos", ids, pieces or merged or PRE_TOKENIZERS[pre].add_bos),
        checker.adds("eos", ids, False),
        pieces and checker.flag("add_space_prefix", True),
    )


class _Checker:
    """Reads the tokenizer keys of untrusted metadata."""

    def __init__(self, metadata: Mapping[str, Value], source: str) -> None:
        self._metadata, self._source = metadata, source

    def _fail(self, problem: str, advice: str = "convert the model again with a current tool") -> GGUFError:
        return GGUFError(f"{self._source}: {problem}; {advice}")

    def _get(self, name: str, kind: type, expected: str) -> Any:
        key = f"tokenizer.ggml.{name}"
        value = self._metadata.get(key)
        if value is None:
            raise self._fail(f"key {key!r} is missing, so there is no tokenizer")
        if not (whole(value) is not None if kind is int else isinstance(value, kind)):
            raise self._fail(f"key {key!r} is not {expected}")
        return value

    def pre_tokenizer(self) -> str:
        """Return the name of the pre-tokenizer, after checking the tokenizer's model."""
        model = self._get("model", str, "a string")
        if model in (SENTENCEPIECE, MERGED_PIECES):
            return model  # type: ignore[no-any-return]
        if model != "gpt2":
            kind = f" ({_FOREIGN[model]})" if model in _FOREIGN else ""
            advice = "use a model with byte pairs ('gpt2') or SentencePiece ('llama', 'gemma4')"
            raise self._fail(f"tokenizer model {preview(model, SHOWN)}{kind} is not supported", advice)
        pre: str = self._get("pre", str, "a string")
        if pre not in PRE_TOKENIZERS:
            known = plain(", ".join(PRE_TOKENIZERS), 150)
            raise self._fail(
                f"pre-tokenizer {preview(pre, SHOWN)} is not supported", f"use a model with one of: {known}"
            )
        return pre

    def tokens(self) -> list[str]:
        tokens = self._strings("tokens")
        if not 1 <= len(tokens) <= MAX_VOCAB:
            raise self._fail(f"the vocabulary has {len(tokens)} tokens, not 1 to {MAX_VOCAB}")
        named = [token for token in tokens if token]  # a token without text never matches, so it may repeat
        if len(set(named)) != len(named):
            seen: set[str] = set()
            twice = next(token for token in named if token in seen or seen.add(token))  # type: ignore[func-returns-value]
            raise self._fail(f"token {preview(twice, SHOWN)} is in the vocabulary twice")
        return tokens

    def token_types(self, tokens: list[str], *, required: bool) -> list[int]:
        """Return the type of each token; all normal if the file has no types and need not."""
        count = len(tokens)
        if "tokenizer.ggml.token_type" not in self._metadata and not required:
            return [NORMAL] * count
        types: list[int] = self._numbers("token_type", count, "iu", "integers").tolist()
        added = sum(len(t) for t, kind in zip(tokens, types, strict=True) if kind in ADDED)
        if added > MAX_ADDED_BYTES:
            raise self._fail(f"special tokens take {added} characters, more than {MAX_ADDED_BYTES}")
        return types

    def merges(self, tokens: list[str]) -> list[tuple[str, str]]:
        known = set(tokens)
        merges = []
        for index, merge in enumerate(self._strings("merges")):
            space = merge.find(" ", 1)  # from 1: the first part may itself be a space
            first, second = merge[:space], merge[space + 1 :]
            if space < 0 or first not in known or second not in known or first + second not in known:
                raise self._fail(f"merge {index}, {preview(merge, SHOWN)}, does not join two tokens into a third")
            merges.append((first, second))
        return merges

    def scores(self, tokens: list[str], types: list[int]) -> list[float]:
        """Return the score of each token of a SentencePiece vocabulary."""
        value = self._numbers("scores", len(tokens), "iuf", "numbers")
        if not np.isfinite(value).all():
            raise self._fail("key 'tokenizer.ggml.scores' contains a number that is not finite")
        self.check_lengths(tokens, types)
        return value.astype(np.float32).tolist()  # type: ignore[no-any-return]

    def check_lengths(self, tokens: list[str], types: list[int]) -> None:
        """Reject pieces that would take long to merge."""
        long = (i for i, t in enumerate(tokens) if len(t) > LONGEST_PIECE and types[i] not in ADDED)
        if (index := next(long, None)) is not None:
            raise self._fail(f"token {index} has {len(tokens[index])} characters, more than {LONGEST_PIECE}")

    def token_ids(self, count: int, defaults: Mapping[str, int]) -> dict[str, int]:
        """Return the special token ids that the file names, e.g. ``{"eos": 151645}``, and defaults for others."""
        ids = {name: token for name, token in defaults.items() if token < count}
        for name in ("eos", "eot", "eom", "bos", "padding"):
            if f"tokenizer.ggml.{name}_token_id" in self._metadata:
                ids[name] = self._get(f"{name}_token_id", int, "an integer")
                if not 0 <= ids[name] < count:
                    raise self._fail(f"{name}_token_id {ids[name]} is outside the vocabulary of {count}")
        return ids

    def flag(self, name: str, default: bool) -> bool:
        key = f"tokenizer.ggml.{name}"
        return self._get(name, bool, "true or false") if key in self._metadata else default

    def adds(self, name: str, ids: Mapping[str, int], default: bool) -> bool:
        """Return True if the token of a name is added to prompts."""
        added = self.flag(f"add_{name}_token", default)
        if added and name not in ids:
            raise self._fail(f"prompts need a {name} token, but key 'tokenizer.ggml.{name}_token_id' is missing")
        return added

    def _numbers(self, name: str, count: int, kinds: str, expected: str) -> Array:
        """Return one number per token, of one of these kinds of NumPy types."""
        items = as_list(self._metadata.get(f"tokenizer.ggml.{name}"))
        # Items are checked first: NumPy would turn strings into an array as wide as the longest for each.
        if items is not None and len(items) == count and (isinstance(items, np.ndarray) or all(map(is_number, items))):
            numbers = np.asarray(items)
            if numbers.dtype.kind in kinds:
                return numbers
        raise self._fail(f"key 'tokenizer.ggml.{name}' is not {count} {expected}")

    def _strings(self, name: str) -> list[str]:
        value: list[Any] = self._get(name, list, "an array of strings")
        if not all(isinstance(item, str) for item in value):
            raise self._fail(f"key 'tokenizer.ggml.{name}' is not an array of strings")
        return value
