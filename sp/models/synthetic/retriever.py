"""Retrievers: models whose weights are written down so that attention does exact n-gram induction.

A retriever predicts what followed the last n tokens where they occurred before, at any length up to its context.
It is no language model; it is an oracle: what it attends to and what it answers is known, so it tests retrieval,
positions, caches and selection, and noise on its weights grades drafters.

``qwen3`` has two layers: one attends to the n tokens before each token, by position, and the next matches. ``qwen35``
has four: Gated DeltaNet (the token before, by order), attention (two before, and four or more, by position),
Gated DeltaNet (three before, by order), attention (match). Feed-forwards are zero. The first n tokens of a prompt
have too few before them and take others for them; chat markup begins every prompt, so no key is mistaken for it.

References
----------
Olsson et al., "In-context Learning and Induction Heads", 2022 (the two-layer circuit); Jelassi et al., "Repeat After
Me", 2024 (n-gram copying by transformers).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sp.arrays import Doubles, Floats
from sp.errors import ConfigError, unknown_name
from sp.gguf import GGUFWriter
from sp.gguf.keys import Value
from sp.models.config import DeltaConfig
from sp.models.file_type import file_type_id, tensor_format
from sp.models.synthetic.retriever_delta import delta_layer
from sp.models.synthetic.retriever_parts import Heads, Residual, Tensors, match_layer, offset_layer
from sp.models.synthetic.synthetic_vocab import CHATML, tokenizer_metadata

RETRIEVER_SHAPES = ("retriever-qwen3", "retriever-qwen35")
BYTES, LETTER_PAIRS = 256, 26 * 26
VOCABULARIES = {"qwen3": (BYTES, 320), "qwen35": (BYTES + LETTER_PAIRS, 960)}  # text tokens, all tokens
# Induction only continues, so the answer has to begin with the key: the last word of the question, in capitals.
TEMPLATE = CHATML.replace(
    "assistant\n", "assistant\n{{ messages[-1]['content'].split() | last | upper | replace('?', '') }}"
)
FEED_FORWARD = 64
MAX_NGRAM = 8
ANSWER = 8.0  # size of the answer's code against the other codes of the stream
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
    """Write down the weights of a retriever.

    Parameters
    ----------
    arch : {"qwen3", "qwen35"}
    vocab : int
        Tokens; each gets a random code of signs.
    seed : int
        Codes, projections, phases and noise follow from it: another seed is another family of models.
    code_dim : int
        Length of a code: 16 to 128, and at most 64 for ``qwen35``.
    noise : float
        Standard deviation of Gaussian noise on every matrix, relative to the matrix's largest entry. Measured with
        30 needles in 512 tokens, ``qwen3`` is exact to 0.03, right on 6 values of 10 at 0.04 and on none at 0.06;
        ``qwen35`` is exact to 0.01, right on 9 of 10 at 0.02 and on none at 0.03.
    context : int
        Positions served, 256 to 131072. Fewer positions leave more of a head to the match.
    ngram : int
        Tokens that must agree, 1 to 8. With 2, keys that share their last two tokens are confused.

    Returns
    -------
    metadata : dict
        Architecture keys of a GGUF file, without a tokenizer.
    tensors : dict of str to float32 array
        GGUF names; matrices are (out, in).

    Raises
    ------
    ConfigError
        For an unknown architecture or a number out of its range.

    Examples
    --------
    >>> metadata, tensors = retriever_tensors("qwen3", 320, seed=0)
    >>> metadata["qwen3.block_count"], tensors["blk.1.attn_q.weight"].shape
    (2, (512, 288))
    """
    if arch not in _BUILDERS:
        raise unknown_name("retriever architecture", arch, _BUILDERS)
    widest = DELTA.head_dim // 2 if arch == "qwen35" else 128
    for name, value, least, most in (
        ("vocab", vocab, 2, 1 << 20),
        ("seed", seed, 0, 1 << 63),
        ("code_dim", code_dim, 16, widest),
        ("context", context, 256, 131072),
        ("ngram", ngram, 1, MAX_NGRAM),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{name} of a {arch} retriever is {value}; it must lie in {least}..{most}")
    if not 0.0 <= noise <= 10.0:
        raise ConfigError(f"noise is {noise}; it must lie in 0..10")
    rng = np.random.default_rng(seed)
    codes = rng.choice([-1.0, 1.0], (vocab, code_dim)) / np.sqrt(code_dim)
    metadata, tensors = _BUILDERS[arch](codes, ngram, context, rng)
    for name, values in tensors.items():
        if values.ndim == 2 and noise:
            tensors[name] = values + rng.standard_normal(values.shape) * noise * np.abs(values).max()
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

    ``retriever-qwen3`` has one token a byte; ``retriever-qwen35`` also has all pairs of lower-case letters, as another
    family would. The chat template starts the answer with the last word of the question in capitals, so a document
    with lines like ``QTX83019`` can be asked "value of qtx?". A newline ends the answer.

    Parameters
    ----------
    path : str or Path
    shape : {"retriever-qwen3", "retriever-qwen35"}
    type : {"f32", "f16", "bf16", "q8_0", "q4_k_m"}
        Format of the matrices; norms, biases and the convolution stay F32. In q4_k_m the short rows are Q8_0.
    seed, noise, code_dim, context, ngram
        See `retriever_tensors`.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ConfigError
        As `retriever_tensors`, and for an unknown shape or type.
    GGUFError
        When the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from sp.gguf import GGUFFile
    >>> path = write_retriever(Path(tempfile.mkdtemp()) / "r.gguf", "retriever-qwen35", "q8_0", seed=1)
    >>> with GGUFFile.open(path) as file:
    ...     file.architecture, file.weight("blk.3.attn_k.weight").format.name
    ('qwen35', 'Q8_0')
    """
    if shape not in RETRIEVER_SHAPES:
        raise unknown_name("retriever shape", shape, RETRIEVER_SHAPES)
    arch = shape.removeprefix("retriever-")
    text_tokens, vocab = VOCABULARIES[arch]
    metadata, tensors = retriever_tensors(
        arch, vocab, seed=seed, code_dim=code_dim, noise=noise, context=context, ngram=ngram
    )
    metadata |= tokenizer_metadata("qwen2" if arch == "qwen3" else "qwen35", text_tokens, vocab) | {
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
    """The current token, then the n before it."""
    return ["current", *(f"previous_{lag}" for lag in range(1, ngram + 1))]


def _heads(ngram: int, **shape: Any) -> Heads:
    """Enough heads for every lag, two of each for a key and value head."""
    return Heads(count=4 if ngram <= 4 else 8, kv_count=2, **shape)


def _qwen3(codes: Doubles, ngram: int, context: int, rng: np.random.Generator) -> tuple[dict[str, Value], Tensors]:
    """Offsets, then match; the embedding is the head, so the answer lands on the current token's slot."""
    slots = _slots(ngram)
    stream = Residual(codes.shape[1], tuple(slots))
    heads = _heads(ngram, head_dim=128, rope_dim=128, rope_base=1e9, gated=False)
    layers = [
        offset_layer(stream, 2.0, heads, dict(enumerate(slots[1:], start=1)), rng),
        match_layer(stream, 2.0 + ngram, heads, slots[1:], ("current", ANSWER), context, rng),
    ]
    tensors = {
        "token_embd.weight": stream.embedding(codes),
        "output_norm.weight": np.ones(stream.hidden),
        **_blocks(layers, stream.hidden, "ffn_norm"),
    }
    return _metadata("qwen3", len(layers), stream.hidden, heads, context), tensors


def _qwen35(codes: Doubles, ngram: int, context: int, rng: np.random.Generator) -> tuple[dict[str, Value], Tensors]:
    """Lags 1 and 3 by Gated DeltaNet, the others by attention; the head is a matrix of its own."""
    slots = _slots(ngram)
    stream = Residual(codes.shape[1], (*slots, "answer"))
    heads = _heads(ngram, head_dim=256, rope_dim=64, rope_base=1e7, gated=True)
    lags = dict(enumerate(slots[1:], start=1))
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
        **_blocks(layers, stream.hidden, "post_attention_norm"),
    }
    metadata = _metadata("qwen35", len(layers), stream.hidden, heads, context) | {
        "qwen35.rope.dimension_count": heads.rope_dim,
        "qwen35.rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        "qwen35.full_attention_interval": 2,
        "qwen35.ssm.conv_kernel": DELTA.conv_kernel,
        "qwen35.ssm.state_size": DELTA.head_dim,
        "qwen35.ssm.group_count": DELTA.key_heads,
        "qwen35.ssm.time_step_rank": DELTA.value_heads,
        "qwen35.ssm.inner_size": DELTA.value_dim,
    }
    return metadata, tensors


def _blocks(layers: list[Tensors], hidden: int, ffn_norm: str) -> Tensors:
    """Mixers with their norms and feed-forwards that add nothing."""
    rest = {
        "attn_norm.weight": np.ones(hidden),
        f"{ffn_norm}.weight": np.ones(hidden),
        "ffn_gate.weight": np.zeros((FEED_FORWARD, hidden)),
        "ffn_up.weight": np.zeros((FEED_FORWARD, hidden)),
        "ffn_down.weight": np.zeros((hidden, FEED_FORWARD)),
    }
    return {f"blk.{i}.{name}": values for i, layer in enumerate(layers) for name, values in (layer | rest).items()}


def _metadata(arch: str, layers: int, hidden: int, heads: Heads, context: int) -> dict[str, Value]:
    """Keys that both architectures have."""
    return {
        "general.architecture": arch,
        f"{arch}.block_count": layers,
        f"{arch}.context_length": context,
        f"{arch}.embedding_length": hidden,
        f"{arch}.feed_forward_length": FEED_FORWARD,
        f"{arch}.attention.head_count": heads.count,
        f"{arch}.attention.head_count_kv": heads.kv_count,
        f"{arch}.attention.key_length": heads.head_dim,
        f"{arch}.attention.value_length": heads.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{arch}.rope.freq_base": heads.rope_base,
    }


_BUILDERS: dict[str, Callable[[Doubles, int, int, np.random.Generator], tuple[dict[str, Value], Tensors]]] = {
    "qwen3": _qwen3,
    "qwen35": _qwen35,
}
