"""Bases of a file's keys (`KeyBasis`): measured once on texts that ship with Python, and kept beside calibrations."""

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
from sp.scoring.calibration.reading import code, prose, source_of
from sp.scoring.calibration.record import file_sha256, folder
from sp.trace import Reporter, write_atomic

SCHEMA = "sp-key-bases/3"
TOKENS = 4096
"""Of each text. They have to be long: at places far back RoPE has turned slow channels further, and bases of texts of
1,024 cost a cache of 8,192 tokens half as much again."""
LARGE, TOKENS_IF_LARGE = 300e6, 1024
"""Parameters from which a model on the CPU reads less of each text: two cores read some hundred tokens a second of such
a model, and nobody should wait for many minutes before the first answer."""
LEAST = 64  # tokens of a window that is worth reading
CHARACTERS = 4, 64  # of a text for each token that is wanted: at first, and at most
CODE_MODULES = ("heapq", "textwrap", "difflib", "configparser", "calendar", "csv")
DOC_MODULES = (
    *("threading", "pathlib", "random", "statistics", "tarfile", "zipfile", "shutil", "subprocess", "smtplib", "cmd"),
    *("imaplib", "enum", "dataclasses", "functools", "contextlib", "turtle", "doctest", "optparse", "inspect", "uuid"),
    *("unittest.case", "unittest.mock", "fractions", "gettext", "socket", "pickletools"),
)
LEAST_DOC = 200  # characters
LEAST_SCALE = np.finfo(np.float32).tiny  # whose inverse is a number


def docs(rng: random.Random) -> Iterator[str]:
    """Long docstrings of modules of the standard library, without end; ConfigError where this Python has no source."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    for name in cycle(rng.sample(DOC_MODULES, len(DOC_MODULES))):
        nodes = [node for node in ast.walk(ast.parse(source_of(name))) if isinstance(node, kinds)]
        found = [ast.get_docstring(node) or "" for node in nodes]
        yield from (f"{one}\n\n" for one in found if len(one) > LEAST_DOC)


def library(rng: random.Random) -> Iterator[str]:
    """Code of the standard library; see `code`."""
    return code(rng, CODE_MODULES)


TEXTS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    **{"prose": prose, "code": library, "docs": docs},
    **{"prose2": prose, "code2": library, "docs2": docs},
}
"""What is read, each text drawn by its name. By two texts of a kind a 5bit cache of SmolLM2 loses a little less than by
one."""

PARSING = Lock()
"""Python 3.11 cannot parse sources in two threads at once: one of them ends in a SystemError."""


def runs(tokenizer: Tokenizer, tokens: int) -> list[Ints]:
    """Token ids of the texts, so many of each. ConfigError: this Python lacks a text."""
    with PARSING:
        return [np.array(_encoded(tokenizer, kind, tokens), np.int64) for kind in TEXTS]


def _encoded(tokenizer: Tokenizer, kind: str, tokens: int) -> list[int]:
    a_token, most = CHARACTERS
    while True:
        pieces, length = list[str](), 0
        for piece in TEXTS[kind](random.Random(kind)):
            pieces.append(piece)
            length += len(piece)
            if length >= a_token * tokens:
                break
        ids = list(tokenizer.encode("".join(pieces), framed=True).ids)
        if len(ids) >= tokens or a_token >= most:
            return ids[:tokens]
        a_token *= 2


@dataclass(eq=False)
class FileBases:
    """Bases of the models of a file, as `Model.key_bases` asks for them: they are known, or kept, or measured now and
    then kept. What cannot be measured has none, so that its caches have plain ones.

    Parameters
    ----------
    path : Path
        Of the file.
    tokenizer : Tokenizer
    window : int
        Positions that the model is good for; it reads no further.
    parameters : int
        Of the model.
    reporter : Reporter, optional
        Is told when bases are measured, which takes as long as reading some thousand tokens.
    """

    path: Path
    tokenizer: Tokenizer
    window: int
    parameters: int = 0
    reporter: Reporter | None = None
    _known: dict[str, dict[int, KeyBasis]] = field(default_factory=dict)
    _lock: Any = field(default_factory=Lock)

    def __call__(self, model: Model) -> Mapping[int, KeyBasis]:
        tokens = self._tokens(model)
        if tokens < LEAST:
            return {}
        key = basis_key(model, tokens)
        if model.all_agree is not None:  # all GPUs read together, or none does
            found = self._known.get(key) or self._kept(model, key)
            if not model.all_agree(found is not None):
                found = self._measured(model, key, tokens, None)
            assert found is not None, "GPUs agreed that all have bases"
            return self._known.setdefault(key, found)
        with self._lock:
            if key not in self._known:
                found = self._kept(model, key)
                self._known[key] = self._measured(model, key, tokens, self.reporter) if found is None else found
            return self._known[key]

    def knows(self, model: Model, kv: str) -> bool:
        """Whether a cache of that name has nothing to wait for."""
        tokens = self._tokens(model)
        return known_kv(kv).sides[0] != "k5" or tokens < LEAST or basis_key(model, tokens) in self._known

    def _tokens(self, model: Model) -> int:
        most = TOKENS_IF_LARGE if model.device == "cpu" and self.parameters > LARGE else TOKENS
        return min(most, self.window, model.config.context)

    def _measured(self, model: Model, key: str, tokens: int, reporter: Reporter | None) -> dict[int, KeyBasis]:
        try:
            read = runs(self.tokenizer, tokens)
        except ConfigError as error:
            told = f"{error}; keys are packed in plain bases, which loses several times as much: --kv q8_0 needs none"
            warnings.warn(told, SpWarning, stacklevel=2)
            return {}
        total = sum(map(len, read)) * model.config.layers
        with nullcontext() if reporter is None else reporter(f"measuring {self.path.name}", total) as progress:
            found = measured_bases(model, read, progress)
        with suppress(OSError, ConfigError):  # it is only slower next time
            write_atomic(self._place(key), packed(found, key))
        return found

    def _kept(self, model: Model, key: str) -> dict[int, KeyBasis] | None:
        with suppress(OSError, ConfigError):
            return unpacked(self._place(key), model, key)
        return None

    def _place(self, key: str) -> Path:
        of_key = hashlib.sha256(key.encode()).hexdigest()[:16]
        return folder() / "keys" / f"{file_sha256(self.path)}-{of_key}.safetensors"


def basis_key(model: Model, tokens: int) -> str:
    """What bases of one file differ by: RoPE, layers that are loaded, a GPU's share of the heads, and the texts."""
    config = model.config
    ropes = [None if one is None else _told(one) for one in (config.rope, config.local_rope)]
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


def _told(rope: Any) -> Any:
    """A RoPE in what JSON has."""
    return json.loads(json.dumps(asdict(rope), default=repr)) | {"scaling": repr(rope.scaling)}


def packed(bases: Mapping[int, KeyBasis], key: str) -> bytes:
    """Bases as a file has them: int32 and float32 arrays (kv_heads, d) by layer, and the key they are known by."""
    from safetensors.numpy import save

    arrays = {f"{layer}.{name}": getattr(one, name) for layer, one in bases.items() for name in ("order", *FLOATS)}
    return bytes(save({name: np.ascontiguousarray(value) for name, value in arrays.items()}, {"key": key}))


FLOATS = ("offset", "scale")


def unpacked(path: Path, model: Model, key: str) -> dict[int, KeyBasis] | None:
    """The bases of a file for the layers of a model; None if it is damaged or has others. OSError: it is not there."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    found = {}
    try:
        with safe_open(path, "numpy") as file:
            if (file.metadata() or {}).get("key") != key:
                return None
            for layer in measured_layers(model):
                found[layer] = KeyBasis(*(file.get_tensor(f"{layer}.{name}") for name in ("order", *FLOATS)))
    except (SafetensorError, TypeError, AttributeError):  # the last two of types that NumPy lacks
        return None
    return found if all(_sound(one, model, layer) for layer, one in found.items()) else None


def _sound(basis: KeyBasis, model: Model, layer: int) -> bool:
    sizes = model.config.heads_of(layer)
    shape, floats = (sizes.kv_heads, sizes.head_dim), (basis.offset, basis.scale)
    if basis.order.dtype != np.int32 or any(one.dtype != np.float32 for one in floats):
        return False
    if any(one.shape != shape for one in (basis.order, *floats)) or not all(np.isfinite(one).all() for one in floats):
        return False
    placed = np.sort(basis.order, axis=1) == np.arange(sizes.head_dim)
    return bool(placed.all() and (basis.scale >= LEAST_SCALE).all())


def with_bases(model: Model, bases: FileBases | None) -> None:
    """Let caches of a model, or of the shares of one, have these bases; None for plain ones."""
    for each in model.shards.models if isinstance(model, SharedModel) else (model,):
        each.key_bases = bases
