"""Values of a wrong kind under every metadata key that is read: refused in one short line, or read and used.

Which keys are read is found by watching the reader, so a new one is drawn from the day it is read. Files are hollow:
headers of the tiny shapes, and tensors of zeros. A share runs as `test_gguf_metadata_fuzz.py`; many more with
`fuzz_inputs.py`.
"""

from __future__ import annotations

import json
import os
import random
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import raw_gguf as raw
from outcomes import Outcomes, Step, one_short_line

from sp.bench.record import file_facts
from sp.errors import SpError
from sp.evals.trained_for import LONGEST, note_of_file
from sp.gguf import ChatTemplate, GGUFFile, Tokenizer, chat_template, render_chat
from sp.gguf.header import STRUCTS, Metadata
from sp.gguf.writer import encode_key_value
from sp.models import Model, load_model
from sp.models.drafts.dflash import load_draft
from sp.models.families.llama import FACTORS
from sp.models.synthetic.dflash_synthetic import find_draft_shape
from sp.models.synthetic.shapes import Plan, find_shape, list_shapes
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata
from sp.planning.inspect import inspect_file
from sp.planning.plan import plan_file
from sp.planning.tables import render, render_plan
from sp.session.loaded import load

TEXT = "The quiet harbour</s> é狐🦙<|im_end|>\n <0x41> <s>12345" + "a" * 50
NAME = "m-00001-of-00001.gguf"
"""As of one shard, so that keys of shards are read."""
PRE = {"tiny-llama": "llama-bpe", "tiny-qwen2": "qwen2", "tiny-qwen3": "llama", "tiny-qwen35": "deepseek-v3"} | {
    "tiny-qwen3moe": "qwen2",
    "tiny-qwen35moe": "qwen35",
    "tiny-qwen3next": "qwen2",
    "tiny-gemma2": "llama",
    "tiny-gemma3": "llama",
    "tiny-gemma4": "gemma4",
    "tiny-mistral3": "tekken",
    "tiny-muse-glimmer": "llama4",
    "tiny-gpt-oss": "gpt-4o",
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 4096,
    "nextn_predict_layers": 0,
}
NUMBERS = (*(0, 1, 2, 3, 4, 5, 127, 128, 255), -1, 1 << 15, 1 << 24, (1 << 31) - 1, (1 << 32) - 1, (1 << 64) - 1)
REALS = (0.0, 1.0, 0.5, -1.0, 1e-45, 1e30, float("inf"), float("nan"), 1e308)
STRINGS: tuple[bytes, ...] = (
    *(b"", b"x", b"qwen3", b"dflash", b"true", b"4", b"yarn", b"\n\n", b"a\nb\rc", b"\x1b[2J\x1b]0;x\x07", b"\0"),
    *(b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"\xf0\x9f\xa6", b"\xc3", "é狐🦙".encode(), "\U000e0001".encode() * 90),
    *(b"y" * 5000, b"\x1b" * 5000, "\u2028".encode() * 300, b"{{ messages }}", b"{% for %}", b"{{ 'x' * 9**9 }}"),
    b"{{ raise_exception('z' * 9000) }}",
)
"""What stands in strings; some is not UTF-8."""


def _string(content: bytes) -> tuple[int, bytes]:
    return raw.STRING, raw.text(content)


def _array(kind: int, items: list[bytes]) -> tuple[int, bytes]:
    return raw.ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items)


def _number(rng: random.Random, kind: int) -> bytes:
    if kind in (raw.F32, raw.F64):
        value = rng.choice(REALS)
        return (
            struct.pack("<f", value if abs(value) < 1e38 else float("inf"))
            if kind == raw.F32
            else struct.pack("<d", value)
        )
    size = STRUCTS[kind].size
    return (rng.choice(NUMBERS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


KINDS = tuple(int(kind) for kind in STRUCTS)


def wrong(rng: random.Random) -> tuple[int, bytes]:
    """A value of any kind: a number, a bool, a string, an array of these, or arrays in arrays."""
    draw = rng.randrange(10)
    if draw == 0:
        return raw.BOOL, bytes([rng.choice((0, 1, 1, 2))])
    if draw <= 2:
        return _string(rng.choice(STRINGS))
    if draw <= 4:
        kind = rng.choice(KINDS)
        return kind, _number(rng, kind)
    count = rng.choice((0, 1, 2, 3, 4, 5, 60, 2048, 20000))
    if draw == 5:
        return _array(raw.STRING, [raw.text(rng.choice(STRINGS)) for _ in range(min(count, 60))])
    if draw == 6:
        return _array(raw.STRING, [raw.text(f"w{i}") for i in range(count)])
    if draw == 7:
        return _array(raw.BOOL, [bytes([rng.random() < 0.5]) for _ in range(count)])
    if draw == 8:
        kind = rng.choice(KINDS)
        return _array(
            kind, [_number(rng, kind)] * count if rng.random() < 0.5 else [_number(rng, kind) for _ in range(count)]
        )
    inner = struct.pack("<IQ", raw.U8, 1) + b"\1"
    for _ in range(rng.choice((0, 1, 200))):
        inner = struct.pack("<IQ", raw.ARRAY, 1) + inner
    return _array(raw.ARRAY, [inner])


def retyped(rng: random.Random, value: Any) -> tuple[int, bytes]:
    """Return a value converted to another kind, or with one item replaced."""
    if isinstance(value, list) and isinstance(value[0], str):
        items = [text.encode() for text in value]
        if rng.random() < 0.2:
            return _string(items[0])
        for _ in range(rng.choice((1, 1, 3))):
            at, other = rng.randrange(len(items)), rng.choice(items)
            items[at] = rng.choice(
                (rng.choice(STRINGS), items[at] + rng.choice(STRINGS), items[at][:-1], other + b" " + other)
            )
        return _array(raw.STRING, [raw.text(item) for item in items])
    if isinstance(value, list | np.ndarray):
        kind = rng.choice(KINDS)
        items = [STRUCTS[kind].pack(min(max(int(one), 0), 100)) for one in value]
        if rng.random() < 0.5 and items:
            items[rng.randrange(len(items))] = _number(rng, kind)
        return _array(kind, items[: rng.choice((len(items), len(items) - 1, 1))])
    said = str(value).encode()
    whole = int(value) % 128 if isinstance(value, bool | int | float) else 1
    kind = rng.choice(KINDS)
    return rng.choice(
        (
            _string(said),
            _array(raw.STRING, [raw.text(said)]),
            (kind, STRUCTS[kind].pack(whole)),
            _array(kind, [STRUCTS[kind].pack(whole)] * rng.choice((1, 4))),
            (raw.BOOL, bytes([bool(value)])),
        )
    )


class Case:
    """A base file, and keys whose values are replaced."""

    def __init__(self, name: str, metadata: Mapping[str, Any], plan: Plan) -> None:
        self.name, self.metadata, self.keys = name, dict(metadata), set(metadata) | {"general.alignment"}
        self.records = {key: encode_key_value(key, value) for key, value in metadata.items()}
        self.tensors, self.nbytes, self.data = [], 0, b""
        for tensor, shape, fmt in plan:
            self.tensors.append(raw.tensor(tensor, shape[::-1], fmt.ggml_type, self.nbytes))
            if tensor == FACTORS:  # of frequencies: the one tensor that configurations read
                self.data = bytes(self.nbytes) + np.ones(shape, np.float32).tobytes()
            self.nbytes += -(-fmt.nbytes(shape) // 32) * 32

    def write(self, path: Path, changes: Mapping[str, tuple[int, bytes] | None]) -> None:
        """A file with some keys changed, or dropped where it is None; the data take no room on most disks."""
        records = {**self.records, **{key: raw.key(key, *change) if change else b"" for key, change in changes.items()}}
        header = raw.build([record for record in records.values() if record], self.tensors)
        path.write_bytes(header + self.data)
        os.truncate(path, len(header) + self.nbytes)

    def mutated(self, rng: random.Random, path: Path) -> dict[str, tuple[int, bytes] | None]:
        """Write a file with one to three keys changed; which."""
        keys, changes = sorted(self.keys), {}
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            key = rng.choice(keys)
            draw = rng.random()
            if draw < 0.04:
                changes[key] = None
            else:
                changes[key] = retyped(rng, self.metadata[key]) if draw < 0.4 and key in self.metadata else wrong(rng)
        self.write(path, changes)
        return changes


@contextmanager
def watched(keys: set[str]) -> Iterator[None]:
    """Add the keys that anybody asks a header for."""
    plain = Metadata.__getitem__

    def asked(self: Metadata, key: str) -> Any:
        keys.add(key)
        return plain(self, key)

    with patch.object(Metadata, "__getitem__", asked):
        yield


@cache
def cases() -> tuple[Case, ...]:
    """A model of every family and every kind of tokenizer, and the draft of one."""
    found = []
    for name in (name for name in list_shapes() if name.startswith("tiny-")):
        shape = find_shape(name)
        told = shape.metadata() | {"general.file_type": 15} | tokenizer_metadata(PRE[name], 420, 450)
        if name == "tiny-qwen3":
            told |= {f"qwen3.{key}": value for key, value in YARN.items()}
        found.append(Case(name, told, shape.plan("q8_0")))
    draft = find_draft_shape("dflash-tiny-qwen35")
    return (*found, Case(draft.name, draft.metadata(), draft.plan("q8_0")))


def model_steps(path: Path) -> Iterator[Step]:
    """All that is made of a model file, each step tried whatever became of those before."""
    yield lambda: told(path)
    yield lambda: file_facts(path)
    yield lambda: one_short_line(note_of_file(path), LONGEST)
    yield lambda: tokenize(Tokenizer.from_gguf(GGUFFile.open(path)))
    yield lambda: foretold(path)


def told(path: Path) -> None:
    """Render each form of `sp inspect` and check its lines."""
    facts = inspect_file(path)
    render(facts)
    json.dumps(facts)
    for line in (*facts["warnings"], facts["verdict"]["line"]):
        one_short_line(line)


def foretold(path: Path) -> None:
    """Check that a file reported as usable loads and takes a conversation, and that no other does."""
    plan = plan_file(path).as_dict()
    render_plan(plan)
    refusal: SpError | None = None
    try:
        load(path, device="cpu")
        converse(path)
    except SpError as error:
        refusal = error
    assert (plan["verdict"]["runs"] == "no") == (refusal is not None), (plan["verdict"]["line"], refusal)
    if refusal is not None:
        raise refusal


def tokenize(tokenizer: Tokenizer) -> None:
    """Text to tokens and every token back."""
    encoding = tokenizer.encode(TEXT, [(4, 20)], framed=True)
    tokenizer.decode(encoding.ids)
    tokenizer.decode(range(tokenizer.vocab_size))


def converse(path: Path) -> None:
    """A conversation by the file's template."""
    file = GGUFFile.open(path)
    template = ChatTemplate.of_file(chat_template(file), Tokenizer.from_gguf(file))
    if template is not None:
        render_chat(template, [{"role": "user", "content": "hi"}])


def draft_steps(path: Path, target: Model) -> Iterator[Step]:
    """All that is made of a draft file."""
    yield lambda: told(path)
    yield lambda: load_draft(path, target)


def reader(case: Case, path: Path) -> Callable[[], Iterator[Step]]:
    """Return the reader of a case."""
    if case.name.startswith("dflash"):
        return lambda: draft_steps(path, tiny_target())
    return lambda: model_steps(path)


@cache
def tiny_target() -> Model:
    """The model of zeros that the tiny draft is for."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "target.gguf"
        next(one for one in cases() if one.name == "tiny-qwen35").write(path, {})
        return load_model(path)


def try_many(count: int, seed: int) -> Outcomes:
    """Read so many mutated files, written to where one stands; what became of them."""
    rng, outcomes, path = random.Random(seed), Outcomes(), Path(NAME)
    readers = {}
    for case in cases():
        case.write(path, {})
        readers[case.name] = reader(case, path)
        with watched(case.keys):
            for step in readers[case.name]():
                step()
    for _ in range(count):
        case = rng.choice(cases())
        changes = case.mutated(rng, path)
        with watched(case.keys):
            outcomes.meet(readers[case.name](), lambda case=case, changes=changes: f"{case.name}: {changes}")
    return outcomes
