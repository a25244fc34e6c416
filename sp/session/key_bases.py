"""Bases of a file's keys (`KeyBasis`): measured on texts that ship with Python, and cached next to calibrations."""

from __future__ import annotations

import ast
import hashlib
import json
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.errors import ConfigError, SpWarning
from sp.gguf import Tokenizer
from sp.models import Model
from sp.models.cache.kv_type import known_kv
from sp.models.run.key_bases import measured_bases, measured_layers
from sp.models.shards.shards import SharedModel
from sp.ops.attention.key_basis import KeyBasis
from sp.quant.cached import IN_BASIS
from sp.scoring.calibration.reading import code, prose, source_of
from sp.scoring.calibration.record import file_sha256, folder
from sp.trace import Reporter, write_atomic

SCHEMA = "sp-key-bases/4"
TOKENS = 4096
"""Tokens of each text. They have to be long: at late positions RoPE has rotated slow channels further, and with bases
from texts of 1,024 tokens a cache of 8,192 loses half as much again."""
LARGE, TOKENS_IF_LARGE = 300e6, 1024
"""Parameters from which a model on the CPU reads less of each text: with such a model two cores read some hundred
tokens a second, and the first answer should not take many minutes."""
LEAST = 64  # tokens of the smallest window for which bases are measured
CHARACTERS = 4, 64  # characters of a text per token: at first, and at most
CODE_MODULES = ("heapq", "textwrap", "difflib", "configparser", "calendar", "csv")
DOC_MODULES = (
    *("threading", "pathlib", "random", "statistics", "tarfile", "zipfile", "shutil", "subprocess", "smtplib", "cmd"),
    *("imaplib", "enum", "dataclasses", "functools", "contextlib", "turtle", "doctest", "optparse", "inspect", "uuid"),
    *("unittest.case", "unittest.mock", "fractions", "gettext", "socket", "pickletools"),
)
LEAST_DOC = 200  # characters
LEAST_SCALE = np.finfo(np.float32).tiny  # the smallest scale with a finite inverse


def docs(rng: random.Random) -> Iterator[str]:
    """Yield long docstrings of the standard library endlessly; ConfigError where this Python has no sources."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    for name in cycle(rng.sample(DOC_MODULES, len(DOC_MODULES))):
        # Modules, classes and functions have docstrings.
        nodes = [node for node in ast.walk(ast.parse(source_of(name))) if isinstance(node, kinds)]
        texts = [ast.get_docstring(node) or "" for node in nodes]
        yield from (f"{text}\n\n" for text in texts if len(text) > LEAST_DOC)


def library(rng: random.Random) -> Iterator[str]:
    """Yield code of the standard library; see `code`."""
    return code(rng, CODE_MODULES)


TEXTS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    **{"prose": prose, "code": library, "docs": docs},
    **{"prose2": prose, "code2": library, "docs2": docs},
}
"""Texts to read, each drawn with its name as the seed. With two texts of a kind a 5bit cache of SmolLM2 loses a little
less than with one."""

PARSING = Lock()
"""Python 3.11 cannot parse sources in two threads at once: one of them ends in a SystemError."""


def runs(tokenizer: Tokenizer, tokens: int) -> list[Ints]:
    """Return token ids of the texts, `tokens` of each; ConfigError if this Python lacks a text."""
    with PARSING:
        return [np.array(_encoded(tokenizer, kind, tokens), np.int64) for kind in TEXTS]


def _encoded(tokenizer: Tokenizer, kind: str, tokens: int) -> list[int]:
    a_token, most = CHARACTERS
    while True:
        pieces, length = list[str](), 0
        for piece in TEXTS[kind](random.Random(kind)):  # the same text in every process
            pieces.append(piece)
            length += len(piece)
            if length >= a_token * tokens:
                break
        ids = list(tokenizer.encode("".join(pieces), framed=True).ids)
        if len(ids) >= tokens or a_token >= most:
            return ids[:tokens]
        a_token *= 2  # the vocabulary has longer tokens than assumed


@dataclass(eq=False)
class FileBases:
    """Bases of the models of a file for `Model.key_bases`: known, cached, or measured now and then cached.

    A model that cannot be measured gets none, so that its caches use plain bases.

    Parameters
    ----------
    path : Path
        The file.
    tokenizer : Tokenizer
    window : int
        Positions that the model is trained for; it reads no further.
    parameters : int
        Number of parameters of the model.
    reporter : Reporter, optional
        Shows the progress of a measurement, which takes as long as reading some thousand tokens.
    """

    path: Path
    tokenizer: Tokenizer
    window: int
    parameters: int = 0
    reporter: Reporter | None = None
    _known: dict[str, dict[int, KeyBasis]] = field(default_factory=dict)  # by `basis_key`, then by layer
    _lock: Any = field(default_factory=Lock)

    def __call__(self, model: Model) -> Mapping[int, KeyBasis]:
        tokens = self._tokens(model)
        if tokens < LEAST:
            return {}
        key = basis_key(model, tokens)
        if model.all_agree is not None:  # all GPUs read together, or none does
            bases = self._known.get(key) or self._cached(model, key)
            if not model.all_agree(bases is not None):
                bases = self._measured(model, key, tokens, None)
            assert bases is not None, "all GPUs have bases"
            return self._known.setdefault(key, bases)
        with self._lock:
            if key not in self._known:
                bases = self._cached(model, key)
                self._known[key] = self._measured(model, key, tokens, self.reporter) if bases is None else bases
            return self._known[key]

    def knows(self, model: Model, kv: str) -> bool:
        """Return True if a cache of this format needs no measurement."""
        tokens = self._tokens(model)
        return known_kv(kv).k not in IN_BASIS or tokens < LEAST or basis_key(model, tokens) in self._known

    def _tokens(self, model: Model) -> int:
        most = TOKENS_IF_LARGE if model.device == "cpu" and self.parameters > LARGE else TOKENS
        return min(most, self.window, model.config.context)

    def _measured(self, model: Model, key: str, tokens: int, reporter: Reporter | None) -> dict[int, KeyBasis]:
        try:
            texts = runs(self.tokenizer, tokens)
        except ConfigError as error:
            warning = (
                f"{error}; keys are packed in plain bases, which loses several times as much: --kv q8_0 needs none"
            )
            warnings.warn(warning, SpWarning, stacklevel=2)
            return {}
        total = sum(map(len, texts)) * model.config.layers
        with nullcontext() if reporter is None else reporter(f"measuring {self.path.name}", total) as progress:
            bases = measured_bases(model, texts, progress)
        with suppress(OSError, ConfigError):  # without the file the next start measures again
            write_atomic(self._place(key), packed(bases, key))
        return bases

    def _cached(self, model: Model, key: str) -> dict[int, KeyBasis] | None:
        with suppress(OSError, ConfigError):
            return unpacked(self._place(key), model, key)
        return None

    def _place(self, key: str) -> Path:
        of_key = hashlib.sha256(key.encode()).hexdigest()[:16]  # part of the file name
        return folder() / "keys" / f"{file_sha256(self.path)}-{of_key}.safetensors"


def basis_key(model: Model, tokens: int) -> str:
    """Return the key of bases within a file: RoPE, loaded layers, a GPU's share of the heads, and the texts."""
    config = model.config
    ropes = [None if rope is None else _as_json(rope) for rope in (config.rope, config.local_rope)]
    shard = getattr(model, "shard", None)
    facts = {
        "schema": SCHEMA,
        "rope": ropes,
        "layers": model.depth,
        "share": None if shard is None else [shard.rank, shard.size],
        "tokens": tokens,
        "texts": list(TEXTS),
    }
    return json.dumps(facts, sort_keys=True)


def _as_json(rope: Any) -> Any:
    """Return a RoPE as JSON values."""
    return json.loads(json.dumps(asdict(rope), default=repr)) | {"scaling": repr(rope.scaling)}


def packed(bases: Mapping[int, KeyBasis], key: str) -> bytes:
    """Return the bytes of a file of bases: int32 and float32 arrays (kv_heads, d) by layer, and their key."""
    from safetensors.numpy import save

    arrays = {f"{layer}.{name}": getattr(basis, name) for layer, basis in bases.items() for name in ("order", *FLOATS)}
    present = {name: np.ascontiguousarray(value) for name, value in arrays.items() if value is not None}
    return bytes(save(present, {"key": key}))


FLOATS = ("offset", "scale", "first")


def unpacked(path: Path, model: Model, key: str) -> dict[int, KeyBasis] | None:
    """Return the bases of a file for the layers of a model; None if it is damaged or has others, OSError if missing."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    bases = {}
    try:
        with safe_open(path, "numpy") as file:
            # A file of another schema, RoPE or set of texts is measured again.
            if (file.metadata() or {}).get("key") != key:
                return None
            for layer in measured_layers(model):
                names = ["order", *FLOATS] if model.weights.blocks[layer].spec.any_shift else ["order", *FLOATS[:2]]
                bases[layer] = KeyBasis(*(file.get_tensor(f"{layer}.{name}") for name in names))
    except (SafetensorError, TypeError, AttributeError):  # the last two are raised for types that NumPy lacks
        return None
    return bases if all(_sound(basis, model, layer) for layer, basis in bases.items()) else None


def _sound(basis: KeyBasis, model: Model, layer: int) -> bool:
    sizes = model.config.heads_of(layer)
    shape = sizes.kv_heads, sizes.head_dim
    floats = [array for array in (basis.offset, basis.scale, basis.first) if array is not None]
    if basis.order.dtype != np.int32 or any(array.dtype != np.float32 for array in floats):
        return False
    if basis.order.shape != shape or any(array.shape != shape for array in floats):
        return False
    if not all(np.isfinite(array).all() for array in floats):
        return False
    placed = np.sort(basis.order, axis=1) == np.arange(sizes.head_dim)
    return bool(placed.all() and (basis.scale >= LEAST_SCALE).all())  # a permutation of the channels of every head


def with_bases(model: Model, bases: FileBases | None) -> None:
    """Set the source of key bases of a model, or of its shards; None for plain bases."""
    for part in model.shards.models if isinstance(model, SharedModel) else (model,):
        part.key_bases = bases
