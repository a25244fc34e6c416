"""Synthetic models: valid random blocks, vocabularies of the published size, files that open, tokenise and run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from read_by_gguf import read_by_gguf

from sp.arrays import Ints
from sp.errors import ConfigError, GGUFError
from sp.gguf import GGUFFile, Tokenizer
from sp.gguf.template import chat_template, render_chat
from sp.gguf.vocabulary import MERGED_PIECES, SENTENCEPIECE
from sp.models import load_model, prefill, read_config
from sp.models.families.base import find_architecture
from sp.models.file.file_type import FILE_TYPES
from sp.models.synthetic.shapes import find_shape, list_shapes, tensor_plan
from sp.models.synthetic.synthetic import random_blocks, write_synthetic
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata
from sp.quant import FORMATS, Q4_K, Q5_K, Q6_K, Q8_0, BlockFormat

TINY = [name for name in list_shapes() if name.startswith("tiny-")]
CASES = [(name, kind) for name in TINY for kind in FILE_TYPES if name == "tiny-qwen35" or kind in ("q4_k_m", "f32")]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("std", [0.00758, 0.5])
def test_random_blocks_have_the_spread_asked_for(fmt: BlockFormat, std: float) -> None:
    blocks = random_blocks(np.random.default_rng(1), fmt, (1 << 19) // fmt.block_size, std)
    values = fmt.decode(blocks).astype(np.float64)
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(std, rel=0.01)
    assert abs(values.mean()) < 0.01 * std
    assert np.abs(values).max() < 5 * std


@pytest.mark.parametrize("fmt", [Q4_K, Q5_K, Q6_K, Q8_0], ids=lambda fmt: fmt.name)
def test_random_blocks_differ_in_codes_and_scales(fmt: BlockFormat) -> None:
    blocks = random_blocks(np.random.default_rng(2), fmt, 4096, 0.02)
    assert len(np.unique(blocks, axis=0)) == len(blocks)
    at = {"Q6_K": 208}.get(fmt.name, 0)
    scales = blocks[:, at : at + 2].copy().view("<f2")[:, 0]
    assert len(np.unique(scales)) > 80  # of 256 drawn from; fp16 is coarse where those of Q6_K lie
    assert scales.max() / scales.min() == pytest.approx(1.25 / 0.75, rel=0.02)
    spread = fmt.decode(blocks).reshape(-1, 16).std(axis=1)
    assert spread.min() > 0


def test_random_affine_blocks_have_no_mean_of_their_own() -> None:
    """Minima follow the scales sub-block by sub-block; a drifting mean would add up over a row."""
    for fmt in (Q4_K, Q5_K):
        values = fmt.decode(random_blocks(np.random.default_rng(3), fmt, 8192, 1.0)).reshape(-1, 32)
        assert values.mean(axis=1).std() == pytest.approx(32**-0.5, rel=0.05)


@pytest.mark.parametrize(
    ("shape", "ids"),
    [
        ("qwen3-0.6b", {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<think>": 151667}),
        (
            "qwen3.6-27b",
            {
                "<|endoftext|>": 248044,
                "<|im_start|>": 248045,
                "<|im_end|>": 248046,
                "<|vision_pad|>": 248055,
                "<tool_call>": 248058,
                "<|fim_pad|>": 248063,
                "</think>": 248069,
            },
        ),
    ],
)
def test_published_special_ids(shape: str, ids: dict[str, int]) -> None:
    found = find_shape(shape)
    keys = tokenizer_metadata("qwen2", found.text_tokens, found.config.vocab)
    tokens = keys["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == len(set(tokens)) == found.config.vocab
    assert {name: tokens.index(name) for name in ids} == ids
    assert keys["tokenizer.ggml.eos_token_id"] == ids["<|im_end|>"]


def test_vocabulary_that_cannot_be_made() -> None:
    for text_tokens, vocab in ((200, 1000), (900, 920), (10**6, 2 * 10**6)):
        with pytest.raises(ConfigError, match="no synthetic vocabulary"):
            tokenizer_metadata("qwen2", text_tokens, vocab)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Files of `CASES`."""
    folder = tmp_path_factory.mktemp("synthetic")
    return {(shape, kind): write_synthetic(folder / f"{shape}-{kind}.gguf", shape, kind) for shape, kind in CASES}


@pytest.mark.parametrize(("shape", "file_type"), CASES)
def test_file_holds_the_plan(tiny: dict[tuple[str, str], Path], shape: str, file_type: str) -> None:
    plan = tensor_plan(shape, file_type)
    reader = read_by_gguf(tiny[shape, file_type])
    held = {t.name: (tuple(int(n) for n in t.shape[::-1]), t.tensor_type.name, int(t.n_bytes)) for t in reader.tensors}
    assert held == {name: (size, fmt.name, fmt.nbytes(size)) for name, size, fmt in plan}
    with GGUFFile.open(tiny[shape, file_type]) as file:
        assert file.metadata["general.file_type"] == FILE_TYPES[file_type]
        config, wanted = read_config(file), find_shape(shape).config
        assert config.eps == pytest.approx(wanted.eps)  # kept as float32 in the file
        assert replace(config, eps=wanted.eps) == wanted
        for name, size, _ in plan:
            values = file.weight(name).dense()
            assert np.isfinite(values).all(), name
            if len(size) == 2 and "conv1d" not in name:
                few = values.size < 1 << 14  # six rows of one block each, each with a scale of its own
                assert values.std() == pytest.approx(size[-1] ** -0.5, rel=0.3 if few else 0.05), name
                assert len({row.tobytes() for row in values[:64]}) == min(64, size[0]), f"{name} repeats rows"
            elif name in find_shape(shape).fixed_tensors():
                np.testing.assert_array_equal(values, find_shape(shape).fixed_tensors()[name], name)
            elif name.endswith("norm.weight"):
                assert values.mean() == pytest.approx(1, abs=0.1), name
            elif name.endswith("ssm_a"):
                assert ((values >= -16) & (values <= -1)).all()


@pytest.mark.parametrize("shape", TINY)
def test_same_seed_same_bytes(tiny: dict[tuple[str, str], Path], tmp_path: Path, shape: str) -> None:
    first = tiny[shape, "q4_k_m"].read_bytes()
    assert write_synthetic(tmp_path / "a.gguf", shape, "q4_k_m").read_bytes() == first
    other = write_synthetic(tmp_path / "b.gguf", shape, "q4_k_m", seed=1).read_bytes()
    assert len(other) == len(first)
    assert np.mean(np.frombuffer(other, np.uint8) != np.frombuffer(first, np.uint8)) > 0.5


def test_progress_counts_the_tensor_data(tmp_path: Path) -> None:
    seen: list[int] = []
    write_synthetic(tmp_path / "x.gguf", "tiny-qwen35", "q8_0", progress=seen.append)
    assert len(seen) > 1
    assert sum(seen) == sum(fmt.nbytes(size) for _, size, fmt in tensor_plan("tiny-qwen35", "q8_0"))


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"no-such-folder.*[^\n]$"):
        write_synthetic(tmp_path / "no-such-folder" / "x.gguf", "tiny-qwen3", "f16")


@pytest.mark.parametrize("shape", TINY)
def test_opens_tokenises_and_renders(tiny: dict[tuple[str, str], Path], shape: str) -> None:
    with GGUFFile.open(tiny[shape, "q4_k_m"]) as file:
        tokenizer = Tokenizer.from_gguf(file)
        template = chat_template(file)
    assert template is not None
    assert tokenizer.vocab_size == find_shape(shape).config.vocab
    text = render_chat(template, [{"role": "user", "content": "The quiet harbour, 8301947 — naïve 猫\n"}])
    encoding = tokenizer.encode(text)
    assert tokenizer.decode(encoding.ids) == text
    if find_architecture(find_shape(shape).config.architecture).tokenizers in ((SENTENCEPIECE,), (MERGED_PIECES,)):
        assert text.startswith("[INST] The quiet harbour")
        return
    begin, end, ending = {
        "llama": (6, 9, "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
        "gpt-oss": (8, 4, "<|end|><|start|>assistant"),
        "muse-glimmer": (8, 4, "<|end|><|start|>assistant"),  # of the same pre-tokenizer, with the template of gpt-oss
    }.get(find_shape(shape).config.architecture, (1, 2, "<|im_end|>\n<|im_start|>assistant\n"))
    assert text.endswith(ending)
    assert tokenizer.eos_ids >= {find_shape(shape).text_tokens + end}
    assert list(encoding.ids).count(find_shape(shape).text_tokens + begin) == 2, "one header a message"
    words = tokenizer.encode("the quiet harbour keeps its boats safe from the winter storms")
    assert len(words) < 0.7 * 61, "merges apply"


@pytest.mark.parametrize("file_type", ["q4_k_m", "f32"])
@pytest.mark.parametrize("shape", TINY)
def test_forward_pass_is_finite(tiny: dict[tuple[str, str], Path], shape: str, file_type: str) -> None:
    model = load_model(tiny[shape, file_type])
    ids: Ints = np.random.default_rng(4).integers(0, model.config.vocab, 100)
    logits = prefill(model, ids, np.arange(100), model.new_cache(100))
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10
