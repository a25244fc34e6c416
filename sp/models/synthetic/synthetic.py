"""Synthetic models: random weights of realistic scale in a real shape, written as fast as the disk allows.

Matrices have standard deviation ``1 / sqrt(fan_in)``, norms are near 1 and the decay parameters of recurrent layers are
drawn as such models are initialised (Gu and Dao, Mamba, 2023, https://arxiv.org/abs/2312.00752), so a forward pass
stays finite and costs what the real model costs. The outputs are noise.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np

from sp.arrays import Bytes, Floats
from sp.errors import ConfigError
from sp.gguf import GGUFWriter, Value
from sp.models.families.base import find_architecture
from sp.models.file.file_type import file_type_id
from sp.models.synthetic.shapes import ModelShape, Plan, find_shape
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata
from sp.quant import F32, BlockFormat

PIECE = 4 << 20  # bytes drawn and written at a time


def write_synthetic(
    path: str | Path,
    shape: str,
    file_type: str,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write a GGUF file of a named shape with random weights.

    `path`: the file to make. `shape`: one of `sp.models.synthetic.shapes.list_shapes`. `file_type`: one of
    `sp.models.file.file_type.FILE_TYPES`. `seed`: not negative. The same seed gives the same bytes. `progress`: called
    with the bytes of each piece of tensor data written; the total is that of `tensor_plan`. Returns the file, complete.
    ConfigError when shape or file type is unknown, or the seed negative; GGUFError when the file cannot be written.
    """
    model_shape = find_shape(shape)
    plan = model_shape.plan(file_type)
    return write_random(
        path, synthetic_metadata(model_shape, file_type), plan, seed, progress, model_shape.fixed_tensors()
    )


def write_random(
    path: str | Path,
    metadata: dict[str, Value],
    plan: Plan,
    seed: int,
    progress: Callable[[int], None] | None = None,
    fixed: Mapping[str, Floats] = MappingProxyType({}),
) -> Path:
    """Write a GGUF file of random weights with the names, shapes and formats of a plan; see `write_synthetic`. Tensors
    of `fixed` are float32 and have the numbers given there."""
    if seed < 0:
        raise ConfigError(f"seed {seed} is negative; give 0 or more")
    writer = GGUFWriter(path, metadata)
    for name, size, fmt in plan:
        data = F32.encode(fixed[name]) if name in fixed else partial(_data, name, size, fmt, seed)
        writer.add(name, size, fmt, data)
    return writer.write(progress)


def synthetic_metadata(shape: ModelShape, file_type: str) -> dict[str, Value]:
    """Return all keys of such a file, including its tokenizer."""
    config = shape.config
    kind: dict[str, Value] = {"general.file_type": file_type_id(file_type), "general.quantization_version": 2}
    pre = find_architecture(config.architecture).tokenizers[0]
    return shape.metadata() | kind | tokenizer_metadata(pre, shape.text_tokens, config.vocab)


def _data(name: str, shape: tuple[int, ...], fmt: BlockFormat, seed: int) -> Iterable[Bytes]:
    """Yield pieces of a tensor; each tensor has its own random stream, so its bytes do not depend on the others."""
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))
    if len(shape) == 1:
        return [F32.encode(random_vector(name, shape[0], rng))]
    return _prefetched(_blocks(rng, fmt, prod(shape) // fmt.block_size, shape[-1] ** -0.5))


def _blocks(rng: np.random.Generator, fmt: BlockFormat, count: int, std: float) -> Iterator[Bytes]:
    step = PIECE // fmt.block_bytes
    for start in range(0, count, step):
        yield random_blocks(rng, fmt, min(step, count - start), std)


def _prefetched(pieces: Iterator[Bytes]) -> Iterator[Bytes]:
    """Yield the same pieces; the next one is drawn while the last is written."""
    with ThreadPoolExecutor(1) as worker:
        waiting = worker.submit(next, pieces, None)
        while (piece := waiting.result()) is not None:
            waiting = worker.submit(next, pieces, None)
            yield piece


def random_vector(name: str, size: int, rng: np.random.Generator) -> Floats:
    """Draw a norm, bias or decay vector (size,), with a distribution chosen by its name."""
    if name.endswith(("norm.weight", "layer_output_scale.weight")):
        values = 1 + 0.1 * rng.standard_normal(size)
    elif name.endswith("ssm_a"):
        values = -rng.uniform(1, 16, size)
    elif name.endswith("ssm_dt.bias"):
        step = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), size))
        values = np.log(np.expm1(step))  # the inverse of softplus
    elif name.endswith("ffn_gate_inp_shexp.weight"):
        values = rng.standard_normal(size) * size**-0.5
    elif name.endswith("attn_sinks.weight"):
        values = rng.standard_normal(size)
    elif name.endswith(".bias"):
        values = 0.1 * rng.standard_normal(size)
    else:
        raise AssertionError(f"no rule for the vector {name}")
    return values.astype(np.float32)


def random_blocks(rng: np.random.Generator, fmt: BlockFormat, blocks: int, std: float) -> Bytes:
    """Draw `blocks` blocks whose decoded values have mean about 0 and standard deviation `std`.

    Encoding random values would take minutes for a large model. Instead all bytes of a block are drawn at once, and
    only its scales are corrected afterwards: codes are then uniform over their range, and the block's scale, which
    varies from block to block, sets the spread. The format defines how (`BlockFormat.fit_scales`); for a format without
    it, values are drawn and encoded.

    Parameters
    ----------
    std : float
        Between 1e-5 and 100; below 1e-3 it is met as closely as the scales of a format allow, by NVFP4 not at all.

    Returns
    -------
    uint8 array (blocks, fmt.block_bytes)

    Examples
    --------
    >>> from sp.quant import Q4_K
    >>> values = Q4_K.decode(random_blocks(np.random.default_rng(0), Q4_K, 1000, 0.02))
    >>> round(float(values.std()), 3)
    0.02
    """
    assert 1e-5 <= std <= 100, f"{std=}"
    if fmt.block_size == 1:
        codes = _random_bytes(rng, 2 * blocks).view(np.int16)
        values = codes.astype(np.float32)
        values *= np.float32(std * np.sqrt(12) / 65536)
        return fmt.encode(values).reshape(blocks, fmt.block_bytes)
    if fmt.fit_scales is None:
        drawn = rng.standard_normal((blocks, fmt.block_size), np.float32)
        return fmt.encode(drawn * np.float32(std))
    out = _random_bytes(rng, blocks * fmt.block_bytes).reshape(blocks, fmt.block_bytes)
    fmt.fit_scales(out, std)
    return out


def _random_bytes(rng: np.random.Generator, count: int) -> Bytes:
    words = rng.integers(0, np.iinfo(np.uint64).max, -(-count // 8), dtype=np.uint64, endpoint=True)
    return words.view(np.uint8)[:count]
