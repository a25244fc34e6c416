"""Retrievers: models with constructed weights, whose attention performs exact n-gram induction.

A retriever predicts what followed the last n tokens where they occurred before, at any length up to its context. It is
not a language model but an oracle: what it attends to and what it answers is known, so it tests retrieval, positions,
caches and selection, and with noise on its weights it grades drafters.

``qwen3`` has two layers: one attends to the n tokens before each token, by position, and the next matches. ``qwen35``
has four: Gated DeltaNet (the token before, by order), attention (two before, and four or more, by position), Gated
DeltaNet (three before, by order), attention (match). Feed-forwards are zero. The first n tokens of a prompt have too
few predecessors and see wrong ones; chat markup starts every prompt, so no key is affected. Source: Olsson et al.,
"In-context Learning and Induction Heads", 2022 (the two-layer circuit); Jelassi et al., "Repeat After Me", 2024 (n-gram
copying by transformers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sp.arrays import Doubles, Floats
from sp.errors import ConfigError, unknown_name
from sp.gguf import GGUFWriter, Value
from sp.models.config import DeltaConfig, LayerKind, ModelConfig
from sp.models.families.base import find_architecture
from sp.models.file.file_type import file_type_id, tensor_format
from sp.models.file.weights import RecordingStore
from sp.models.synthetic.retriever_parts import Heads, Residual, Tensors, delta_layer, match_layer, offset_layer
from sp.models.synthetic.synthetic_vocab import CHATML, tokenizer_metadata
from sp.ops.rope import Rope

BYTES, LETTER_PAIRS = 256, 26 * 26
# Induction can only continue a text, so the answer starts with the key: the last word of the question, in capitals.
TEMPLATE = CHATML.replace(
    "assistant\n", "assistant\n{{ messages[-1]['content'].split() | last | upper | replace('?', '') }}"
)
FEED_FORWARD = 64
MAX_NGRAM = 8
MOST_CONTEXT = 1 << 20
ANSWER = 8.0  # magnitude of the answer's code relative to the other codes of the stream
DELTA = DeltaConfig(key_heads=2, value_heads=4, head_dim=128, conv_kernel=4)


def retriever_tensors(
    arch: str,
    vocab: int,
    *,
    seed: int,
    code_dim: int = 64,
    noise: float = 0.0,
    context: int = 131072,
    ngram: int = 3,
) -> tuple[dict[str, Value], dict[str, Floats]]:
    """Construct the weights of a retriever.

    `vocab`: tokens; each gets a random code of signs. `seed`: determines codes, projections, phases and noise: another
    seed is another family of models. `code_dim`: length of a code: 16 to 128, and at most 64 for ``qwen35``. `noise`:
    standard deviation of Gaussian noise on every matrix, relative to the matrix's largest entry. Measured with 30
    needles in 512 tokens, ``qwen3`` is exact to 0.03, right on 6 values of 10 at 0.04 and on none at 0.06; ``qwen35``
    is exact to 0.01, right on 9 of 10 at 0.02 and on none at 0.03. `context`: positions covered, 256 to a million
    (2^20). Fewer positions leave more of a head to the match. `ngram`: tokens that must agree, 1 to 8. With 2, keys
    that share their last two tokens are confused. Returns `metadata`: architecture keys of a GGUF file, without a
    tokenizer, and `tensors`: by GGUF name; matrices are (out, in). ConfigError for an unknown architecture or a number
    out of range.
    """
    if arch not in _CIRCUITS:
        raise unknown_name("retriever architecture", arch, _CIRCUITS)
    circuit = _CIRCUITS[arch]
    for name, value, least, most in (
        ("vocab", vocab, 2, 1 << 20),
        ("seed", seed, 0, 1 << 63),
        ("code_dim", code_dim, 16, circuit.widest_code),
        ("context", context, 256, MOST_CONTEXT),
        ("ngram", ngram, 1, MAX_NGRAM),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{name} of a {arch} retriever is {value}; it must lie in {least}..{most}")
    if not 0.0 <= noise <= 10.0:
        raise ConfigError(f"noise is {noise}; it must lie in 0..10")
    rng = np.random.default_rng(seed)
    codes = rng.choice([-1.0, 1.0], (vocab, code_dim)) / np.sqrt(code_dim)
    # Noise is added last, so that it does not change the random draws of the construction.
    config, tensors = circuit.build(codes, ngram, context, rng)
    tensors = _completed(config, tensors)
    for name, values in tensors.items():
        if values.ndim == 2 and noise:
            tensors[name] = values + rng.standard_normal(values.shape) * noise * np.abs(values).max()
    metadata = find_architecture(arch).keys(config)
    return metadata, {name: values.astype(np.float32) for name, values in tensors.items()}


def write_retriever(
    path: str | Path,
    shape: str,
    type: str = "f32",
    *,
    seed: int,
    noise: float = 0.0,
    code_dim: int = 64,
    context: int = 131072,
    ngram: int = 3,
) -> Path:
    """Write a retriever as a GGUF file that reads text.

    ``retriever-qwen3`` has one token per byte; ``retriever-qwen35`` also has all pairs of lower-case letters, like
    another family. The chat template starts the answer with the last word of the question in capitals, so a document
    with lines like ``QTX83019`` can be asked "value of qtx?". A newline ends the answer. `type`: format of the
    matrices; norms, biases and the convolution stay F32. In q4_k_m the short rows are Q8_0. `seed`, `noise`,
    `code_dim`, `context`, `ngram`: see `retriever_tensors`. Returns the file. ConfigError: as `retriever_tensors`, and
    for an unknown shape or type; GGUFError if the file cannot be written.
    """
    if shape not in RETRIEVER_SHAPES:
        raise unknown_name("retriever shape", shape, RETRIEVER_SHAPES)
    arch = shape.removeprefix("retriever-")
    text_tokens, vocab = _CIRCUITS[arch].text_tokens, _CIRCUITS[arch].vocab
    metadata, tensors = retriever_tensors(
        arch, vocab, seed=seed, code_dim=code_dim, noise=noise, context=context, ngram=ngram
    )
    metadata |= tokenizer_metadata(find_architecture(arch).tokenizers[0], text_tokens, vocab) | {
        "general.name": f"{shape} seed {seed}",
        "general.file_type": file_type_id(type),
        "tokenizer.ggml.eot_token_id": ord("\n"),  # the byte tokens come first, in order
        "tokenizer.chat_template": TEMPLATE,
    }
    writer = GGUFWriter(path, metadata)
    layers, tied = sum(name.endswith(".attn_norm.weight") for name in tensors), "output.weight" not in tensors
    for name, values in tensors.items():
        fmt = tensor_format(type, name, values.shape, layers=layers, tied=tied)
        writer.add(name, values.shape, fmt, fmt.encode(values))
    return writer.write()


def _slots(ngram: int) -> list[str]:
    """Return the names of the slots: the current token, then the n before it."""
    return ["current", *(f"previous_{lag}" for lag in range(1, ngram + 1))]


def _heads(ngram: int, **shape: Any) -> Heads:
    """Return enough heads for every lag, with two kv heads."""
    return Heads(count=4 if ngram <= 4 else 8, kv_count=2, **shape)


def _qwen3(codes: Doubles, ngram: int, context: int, rng: np.random.Generator) -> tuple[ModelConfig, Tensors]:
    """Build offsets, then match; the embedding is the head, so the answer is written to the current token's slot."""
    slots = _slots(ngram)
    stream = Residual(codes.shape[1], tuple(slots))
    heads = _heads(ngram, head_dim=128, rope_dim=128, rope_base=1e9, gated=False)
    layers = [
        offset_layer(stream, 2.0, heads, dict(enumerate(slots[1:], start=1)), rng),
        match_layer(stream, 2.0 + ngram, heads, slots[1:], ("current", ANSWER), context, rng),
    ]
    tensors = {"token_embd.weight": stream.embedding(codes), "output_norm.weight": np.ones(stream.hidden)}
    config = _config("qwen3", codes, stream, ("attention", "attention"), heads, context)
    return config, tensors | _named(layers)


def _qwen35(codes: Doubles, ngram: int, context: int, rng: np.random.Generator) -> tuple[ModelConfig, Tensors]:
    """Build lags 1 and 3 with Gated DeltaNet, the others with attention; the head is a matrix of its own."""
    slots = _slots(ngram)
    stream = Residual(codes.shape[1], (*slots, "answer"))
    heads = _heads(ngram, head_dim=256, rope_dim=64, rope_base=1e7, gated=True)
    lags = dict(enumerate(slots[1:], start=1))
    # Gated DeltaNet serves lags 1 and 3 by order, attention the others by position.
    first, third = ({lag: slot for lag, slot in lags.items() if lag == only} for only in (1, 3))
    by_position = {lag: slot for lag, slot in lags.items() if lag not in (1, 3)}
    energy = 2.0 + len(first)
    layers = [
        delta_layer(stream, 2.0, DELTA, first, rng),
        offset_layer(stream, energy, heads, by_position, rng),
        delta_layer(stream, energy + len(by_position), DELTA, third, rng),
        match_layer(stream, 2.0 + ngram, heads, slots[1:], ("answer", ANSWER), context, rng),
    ]
    tensors = {
        "token_embd.weight": stream.embedding(codes),
        "output_norm.weight": np.ones(stream.hidden),
        "output.weight": stream.write("answer", codes.T).T,
    }
    kinds: tuple[LayerKind, ...] = ("delta", "attention", "delta", "attention")
    config = replace(_config("qwen35", codes, stream, kinds, heads, context), delta=DELTA)
    return config, tensors | _named(layers)


def _config(
    arch: str, codes: Doubles, stream: Residual, kinds: tuple[LayerKind, ...], heads: Heads, context: int
) -> ModelConfig:
    return ModelConfig(
        architecture=arch,
        hidden=stream.hidden,
        vocab=len(codes),
        context=context,
        ffn=(FEED_FORWARD,) * len(kinds),
        kinds=kinds,
        heads=heads.count,
        kv_heads=heads.kv_count,
        head_dim=heads.head_dim,
        rope=Rope(heads.rope_base, heads.rope_dim),
        eps=1e-6,
        gated=heads.gated,
    )


def _named(layers: list[Tensors]) -> Tensors:
    return {f"blk.{i}.{name}": values for i, layer in enumerate(layers) for name, values in layer.items()}


def _completed(config: ModelConfig, constructed: Tensors) -> Tensors:
    """Add the tensors that blocks require and the construction does not set: norms of one, matrices of zero."""
    complete = {name: values for name, values in constructed.items() if not name.startswith("blk.")}
    for index in range(config.layers):
        store, blk = RecordingStore(config), f"blk.{index}."
        find_architecture(config.architecture).block(store, index)
        complete |= {name: values for name, values in constructed.items() if name.startswith(blk)}
        for tensor in store.tensors.values():
            rest = np.ones(tensor.shape) if tensor.kind == "vector" else np.zeros(tensor.shape)
            assert complete.setdefault(tensor.name, rest).shape == tensor.shape, (
                f"{tensor}: {complete[tensor.name].shape}"
            )
    return complete


@dataclass(frozen=True)
class _Circuit:
    """Construction of a retriever for one architecture. `build`: from codes (vocab, code_dim), n, context and a
    generator to the configuration and the tensors that matter. `text_tokens`, `vocab`: sizes of a vocabulary that reads
    text."""

    build: Callable[[Doubles, int, int, np.random.Generator], tuple[ModelConfig, Tensors]]
    widest_code: int
    text_tokens: int
    vocab: int


_CIRCUITS = {
    "qwen3": _Circuit(_qwen3, 128, BYTES, 320),
    "qwen35": _Circuit(_qwen35, DELTA.head_dim // 2, BYTES + LETTER_PAIRS, 960),
}
RETRIEVER_SHAPES = tuple(f"retriever-{arch}" for arch in _CIRCUITS)
