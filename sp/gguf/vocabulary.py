"""The vocabulary a file carries, checked key by key. Keys and defaults are llama.cpp's (``tokenizer.ggml.*``)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.errors import GGUFError, plain
from sp.gguf.header import Array, Value
from sp.gguf.pretokenizers import PRE_TOKENIZERS
from sp.values import is_number, listed, shown, whole

SENTENCEPIECE = "llama"
"""What ``tokenizer.ggml.model`` says of SentencePiece files. They name no pre-tokenizer, so it stands for one."""

MERGED_PIECES = "gemma4"
"""The same of files whose pieces, spelled as SentencePiece's, are merged in the order of a list."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # values of tokenizer.ggml.token_type
ADDED = (UNKNOWN, CONTROL, USER_DEFINED)  # tokens that are found in the text by their spelling, before it is cut up
_FOREIGN = {"bert": "WordPiece", "t5": "unigrams", "rwkv": "RWKV's longest words", "none": "no vocabulary at all"}
MAX_VOCAB = 1 << 20
MAX_ADDED_BYTES = 1 << 20  # text of all special tokens; bounds the automaton that finds them
SHOWN = 40  # characters of a stranger's text in a message
LONGEST_PIECE = 1024  # characters of a SentencePiece token; bounds what each merge costs


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a file.

    `tokens`: of byte pairs in the byte alphabet, of SentencePiece with U+2581 for spaces; special ones are plain text;
    `types`: of each token, as in ``tokenizer.ggml.token_type``; `merges`: of byte pairs and of listed pieces, best
    first; `pre`: which of `PRE_TOKENIZERS` cuts the text up, or `SENTENCEPIECE`, or `MERGED_PIECES`; `ids`: special ids
    by name (eos, eot, eom, bos, padding), those the file has; `scores`: of SentencePiece, of each token, the best
    merged first; `add_bos`, `add_eos`: whether prompts begin with BOS and end with EOS; `add_space_prefix`: whether
    SentencePiece writes a space in front.
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
        """Digest of all that decides how text is cut: equal digests tokenize alike. Unused tokens at the end do not
        count: sizes of one family pad a vocabulary to different widths."""
        held = len(self.tokens)
        while held and self.types[held - 1] == UNUSED:
            held -= 1
        types, scores = map(str, self.types[:held]), map(str, self.scores[:held])
        alike = (name for name, record in PRE_TOKENIZERS.items() if record == PRE_TOKENIZERS.get(self.pre))
        merges = (f"{left} {right}" for left, right in self.merges)
        digest = hashlib.sha256()
        for part in (
            *(next(alike, self.pre), *self.tokens[:held], *types, *merges, *scores),
            *(["bos", str(self.ids["bos"])] if self.add_bos else []),
            *(["eos", str(self.ids["eos"])] if self.add_eos else []),
            *(["space"] if self.add_space_prefix else []),
        ):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()


def read_vocabulary(metadata: Mapping[str, Value], source: str) -> Vocabulary:
    """Check and collect the tokenizer keys of untrusted `metadata`; GGUFError, naming `source`, when amiss."""
    checker = _Checker(metadata, source)
    pre = checker.pre_tokenizer()  # tell of a foreign tokenizer before finding fault with its tokens
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
        """Which pre-tokenizer, after a look at the tokenizer's model."""
        model = self._get("model", str, "a string")
        if model in (SENTENCEPIECE, MERGED_PIECES):
            return model  # type: ignore[no-any-return]
        if model != "gpt2":
            what = f" ({_FOREIGN[model]})" if model in _FOREIGN else ""
            advice = "use a model with byte pairs ('gpt2') or SentencePiece ('llama', 'gemma4')"
            raise self._fail(f"tokenizer model {shown(model, SHOWN)}{what} is not supported", advice)
        pre: str = self._get("pre", str, "a string")
        if pre not in PRE_TOKENIZERS:
            known = plain(", ".join(PRE_TOKENIZERS), 150)
            raise self._fail(f"pre-tokenizer {shown(pre, SHOWN)} is not supported", f"use a model with one of: {known}")
        return pre

    def tokens(self) -> list[str]:
        tokens = self._strings("tokens")
        if not 1 <= len(tokens) <= MAX_VOCAB:
            raise self._fail(f"the vocabulary has {len(tokens)} tokens, not 1 to {MAX_VOCAB}")
        named = [token for token in tokens if token]  # a token without text is found nowhere
        if len(set(named)) != len(named):
            seen: set[str] = set()
            twice = next(token for token in named if token in seen or seen.add(token))  # type: ignore[func-returns-value]
            raise self._fail(f"token {shown(twice, SHOWN)} is in the vocabulary twice")
        return tokens

    def token_types(self, tokens: list[str], *, required: bool) -> list[int]:
        """Type of each token; all normal when the file does not say and need not."""
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
            at = merge.find(" ", 1)
            left, right = merge[:at], merge[at + 1 :]
            if at < 0 or left not in known or right not in known or left + right not in known:
                raise self._fail(f"merge {index}, {shown(merge, SHOWN)}, does not join two tokens into a third")
            merges.append((left, right))
        return merges

    def scores(self, tokens: list[str], types: list[int]) -> list[float]:
        """Score of each token of a SentencePiece vocabulary."""
        value = self._numbers("scores", len(tokens), "iuf", "numbers")
        if not np.isfinite(value).all():
            raise self._fail("key 'tokenizer.ggml.scores' holds a number that is not finite")
        self.check_lengths(tokens, types)
        return value.astype(np.float32).tolist()  # type: ignore[no-any-return]

    def check_lengths(self, tokens: list[str], types: list[int]) -> None:
        """Refuse pieces that would take long to merge."""
        long = (i for i, t in enumerate(tokens) if len(t) > LONGEST_PIECE and types[i] not in ADDED)
        if (index := next(long, None)) is not None:
            raise self._fail(f"token {index} has {len(tokens[index])} characters, more than {LONGEST_PIECE}")

    def token_ids(self, count: int, defaults: Mapping[str, int]) -> dict[str, int]:
        """The special token ids the file names, e.g. ``{"eos": 151645}``, and defaults for those it does not."""
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
        """Whether the token of a name is added to prompts."""
        wanted = self.flag(f"add_{name}_token", default)
        if wanted and name not in ids:
            raise self._fail(f"prompts are to have a token {name}, but key 'tokenizer.ggml.{name}_token_id' is missing")
        return wanted

    def _numbers(self, name: str, count: int, kinds: str, expected: str) -> Array:
        """One number a token, of one of the kinds of NumPy's types."""
        found = listed(self._metadata.get(f"tokenizer.ggml.{name}"))
        # looked at one by one first: of texts NumPy makes an array as wide as the longest
        if found is not None and len(found) == count and (isinstance(found, np.ndarray) or all(map(is_number, found))):
            numbers = np.asarray(found)
            if numbers.dtype.kind in kinds:
                return numbers
        raise self._fail(f"key 'tokenizer.ggml.{name}' is not {count} {expected}")

    def _strings(self, name: str) -> list[str]:
        value: list[Any] = self._get(name, list, "an array of strings")
        if not all(isinstance(item, str) for item in value):
            raise self._fail(f"key 'tokenizer.ggml.{name}' is not an array of strings")
        return value
