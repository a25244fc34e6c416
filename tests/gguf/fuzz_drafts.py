"""Drafts and trained scorers whose config.json or safetensors header is hostile: refused in one short line, or read.

Keys of config.json are drawn from those that the reader asks for, values from all that JSON can spell. A share runs as
`test_gguf_metadata_fuzz.py`; many more with `fuzz_inputs.py`.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fuzz_metadata import tiny_target
from outcomes import Outcomes

from sp.models import Model
from sp.models.drafts.dflash import load_draft, names_of
from sp.models.drafts.dflash_config import PUBLISHED, DraftKeys
from sp.models.synthetic.dflash_synthetic import DraftShape, find_draft_shape
from sp.scoring import SCORERS
from sp.scoring.trained.base import EMBEDDED_SCORER, ScorerFile
from sp.session import embedded
from sp.session.loaded import load

DEEP = (3, 60, 900, 20_000)
DIGITS = (20, 25, 309, 400, 4299, 4301, 9000)
TEXTS = (
    *('""', '"x"', '"\\ud800"', '"\\udfff\\ud800 x"', '"\\u001b[2J\\u0007"', '"\\n\\n"', '"yarn"', '"linear"', '"4"'),
    *('"full_attention"', f'"{"y" * 5000}"', '"' + "\\u2028" * 500 + '"', '"' + "\\ud83d" * 500 + '"', '"🦙"'),
)
"""JSON of texts, some of which no UTF-8 can spell."""
PLAIN = ("null", "true", "false", "0", "1", "2", "-1", "0.5", "1e308", "-1e308", "1e-320", "1e400", "NaN", "-Infinity")


def anything(rng: random.Random, depth: int = 2) -> str:
    """JSON, or nearly, of a value of any kind."""
    draw = rng.randrange(11)
    if draw <= 2:
        return rng.choice(PLAIN)
    if draw <= 4:
        return rng.choice(("", "-")) + rng.choice("123456789") * rng.choice(DIGITS)
    if draw <= 6:
        return rng.choice(TEXTS)
    if draw == 7:
        opens, closes = rng.choice((("[", "]"), ('{"a":', "}")))
        return opens * (n := rng.choice(DEEP)) + "1" + closes * n
    if draw == 8 and depth:
        item, count = anything(rng, depth - 1), rng.choice((0, 1, 3, 5, 1000))
        return "[" + ",".join([item] * min(count, 1 + 100_000 // (len(item) + 1))) + "]"
    if draw == 9 and depth:
        pairs = (f"{rng.choice(TEXTS)}: {anything(rng, depth - 1)}" for _ in range(rng.choice((0, 1, 4))))
        return "{" + ",".join(pairs) + "}"
    return str(rng.choice((1, -1)) * (1 << rng.choice((7, 24, 31, 53, 63, 64, 70))))


def written(value: Any, changes: Mapping[tuple[str, ...], str], at: tuple[str, ...] = ()) -> str:
    """JSON of `value`, with other text in some places and keys."""
    if at in changes:
        return changes[at]
    if not isinstance(value, dict):
        return json.dumps(value)
    names = [*value, *(path[-1] for path in changes if path[:-1] == at and path[-1] not in value)]
    return (
        "{" + ", ".join(f"{json.dumps(name)}: {written(value.get(name), changes, (*at, name))}" for name in names) + "}"
    )


def places(value: Any, at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every place in nested objects."""
    inner = (
        [found for name, one in value.items() for found in places(one, (*at, name))] if isinstance(value, dict) else []
    )
    return [at, *inner] if at else inner


def spoiled(rng: random.Random, text: bytes) -> bytes:
    """Bytes cut, doubled, or broken here and there; mostly as they were."""
    if rng.random() < 0.8:
        return text
    at, kind = rng.randrange(len(text) + 1), rng.randrange(4)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + rng.choice((b"\xff", b"\xed\xa0\x80", b"\0", b"\xef\xbb\xbf", b"[" * 5000)) + text[at:]
    return text[:at] + text[at + rng.randrange(1, 9) :] if kind == 2 else b"\xef\xbb\xbf" + text


class Checkpoint:
    """A draft as it is published: config.json and model.safetensors."""

    name = "draft"

    def __init__(self, shape: DraftShape, target: Model) -> None:
        self._target, self.asked = target, set[str]()
        keys = {name.removeprefix("dflash."): value for name, value in shape.metadata().items()}
        told = {
            PUBLISHED.get(name, name): getattr(value, "tolist", lambda v=value: v)() for name, value in keys.items()
        }
        kinds = [f"{'sliding' if slides else 'full'}_attention" for slides in shape.sliding]
        self.config: dict[str, Any] = {
            **{name: value for name, value in told.items() if "." not in name and name != "target_layers"},
            **{"layer_types": kinds, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": True}},
            "dflash_config": {"mask_token_id": shape.mask_id, "target_layer_ids": list(shape.target_layers)},
        }
        self.header, at = {"__metadata__": {"format": "pt"}}, 0
        for one in shape.tensors():
            ours = {"enc.output_norm.weight": "hidden_norm.weight"}.get(one.name, one.name)
            end = at + 4 * one.size
            self.header[names_of(ours)[-1 if ours != "hidden_norm.weight" else 0]] = {
                **{"dtype": "F32", "shape": list(one.shape), "data_offsets": [at, end]}
            }
            at = end
        self.nbytes = at

    def write(
        self, rng: random.Random | None, config: Mapping[tuple[str, ...], str], header: Mapping[Any, str]
    ) -> None:
        """Both files, with changes; the data take no room on most disks."""
        text, head = (written(*one).encode() for one in ((self.config, config), (self.header, header)))
        if rng is not None and config:
            text = spoiled(rng, text)
        if rng is not None and header:
            head = spoiled(rng, head)
        Path("config.json").write_bytes(text)
        size = (
            len(head)
            if rng is None or not header or rng.random() < 0.9
            else rng.choice((0, 1, 1 << 20, 1 << 40, (1 << 64) - 1))
        )
        Path("d.safetensors").write_bytes(struct.pack("<Q", size) + head)
        os.truncate("d.safetensors", 8 + len(head) + self.nbytes)

    def mutate(self, rng: random.Random) -> object:
        """Write a mutation; what it was."""
        if rng.random() < 0.65:
            dots = [tuple(name.split(".", 1)) if name.startswith("rope_scaling.") else (name,) for name in self.asked]
            found = sorted({*dots, *places(self.config), ("rope_parameters",)})
            config = {rng.choice(found): anything(rng) for _ in range(rng.choice((1, 1, 2)))}
            self.write(rng, config, {})
            return config
        names = places(self.header)
        header = {rng.choice(names): anything(rng) for _ in range(rng.choice((1, 1, 2)))}
        if rng.random() < 0.3:  # another tensor
            odd = rng.choice(
                ("x" * 9000, "é\n\x1b[2J", "markov_" + "y" * 100, "layers.0.attn_conv_" + "\u2028" * 90, "")
            )
            header[(odd,)] = json.dumps({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})
        self.write(rng, {}, header)
        return header

    def read(self) -> object:
        """All that is made of it."""
        return load_draft("d.safetensors", self._target)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Add the names that the reader asks for."""
        plain = DraftKeys.name

        def asked(keys: DraftKeys, key: str) -> str:
            self.asked.add(plain(keys, key))
            return plain(keys, key)

        with patch.object(DraftKeys, "name", asked):
            yield


class Scorer:
    """A trained scorer, which is one safetensors file with JSON in its header."""

    name = "scorer"

    def __init__(self) -> None:
        raw = EMBEDDED_SCORER.read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        self.header, self.data = json.loads(raw[8:end]), raw[end:]
        self.options = json.loads(self.header["__metadata__"]["options"])
        self._model = load(embedded("drafter"), device="cpu").model
        self._scorer = SCORERS.build(ScorerFile.load(EMBEDDED_SCORER).kind)

    def mutate(self, rng: random.Random) -> object:
        """Write a mutation; what it was."""
        header = {}
        if rng.random() < 0.6:
            options = written(self.options, {(rng.choice([*self.options, "x" * 900]),): anything(rng)})
            header[("__metadata__", rng.choice(("options", "options", "made")))] = json.dumps(options)
        else:
            header[rng.choice(places(self.header))] = anything(rng)
        head = spoiled(rng, written(self.header, header).encode())
        Path("s.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + self.data)
        return header

    def read(self) -> object:
        """All that is made of it."""
        return self._scorer.open_weights(Path("s.safetensors"), self._model)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Its keys are all in the file."""
        yield


@cache
def subjects() -> tuple[Checkpoint | Scorer, ...]:
    """Return the files to damage, of a drafter and of a scorer."""
    return Checkpoint(find_draft_shape("dflash-tiny-qwen35"), tiny_target()), Scorer()


def try_many(count: int, seed: int) -> Outcomes:
    """Read so many mutations, written to where one stands; what became of them."""
    rng, outcomes = random.Random(seed), Outcomes()
    draft, scorer = subjects()
    draft.write(None, {}, {})
    with draft.watched():
        draft.read()
    for _ in range(count):
        subject = draft if rng.random() < 0.8 else scorer
        change = subject.mutate(rng)
        with subject.watched():
            outcomes.meet([subject.read], lambda name=subject.name, change=change: f"{name}: {change}")
    return outcomes
