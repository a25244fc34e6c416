"""Synthetic models: exact plans and metadata for the published shapes, whole blocks for all."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import numpy as np
import pytest
from gguf import LlamaFileType

from sp.errors import ConfigError
from sp.models.file.file_type import FILE_TYPES, tensor_format
from sp.models.synthetic.shapes import find_shape, list_shapes, tensor_plan
from sp.models.synthetic.synthetic import write_synthetic
from sp.quant import F32, FORMATS, Q6_K, format_by_name

MIXES = "q4_k_m", "ud-q4_k_xl", "mxfp4_moe"
# The 32 of 64 layers that get more bits.
MORE = {*range(8), *range(10, 56, 3), *range(56, 64)}


def plan_bytes(shape: str, file_type: str) -> int:
    return sum(fmt.nbytes(size) for _, size, fmt in tensor_plan(shape, file_type))


def test_27b_is_the_published_file() -> None:
    """851 tensors and 16 536 406 016 bytes: the size a published Q4_K_M file of this model has."""
    plan = tensor_plan("qwen3.6-27b", "q4_k_m")
    assert Counter(fmt.name for *_, fmt in plan) == {"Q4_K": 433, "Q6_K": 65, "F32": 353}
    assert plan_bytes("qwen3.6-27b", "q4_k_m") == 16_536_406_016
    assert sum(prod(size) for _, size, _ in plan) == 26_895_998_464
    assert len({name for name, *_ in plan}) == len(plan) == 851


def test_27b_mixed_types_by_layer() -> None:
    chosen: dict[str, set[int]] = {}
    for name, _, fmt in tensor_plan("qwen3.6-27b", "q4_k_m"):
        if name.startswith("blk.") and fmt is Q6_K:
            _, layer, kind = name.split(".", 2)
            chosen.setdefault(kind, set()).add(int(layer))
    assert chosen == {
        "ffn_down.weight": MORE,
        "attn_v.weight": {3, 7, 19, 31, 43, 55, 59, 63},
        "attn_qkv.weight": {i for i in MORE if i % 4 != 3},
    }
    formats = {name: fmt.name for name, _, fmt in tensor_plan("qwen3.6-27b", "q4_k_m")}
    assert (formats["output.weight"], formats["token_embd.weight"]) == ("Q6_K", "Q4_K")
    assert (formats["blk.0.ssm_alpha.weight"], formats["blk.0.ssm_conv1d.weight"]) == ("Q4_K", "F32")


def test_27b_shapes() -> None:
    sizes = {name: size for name, size, _ in tensor_plan("qwen3.6-27b", "bf16")}
    attention = {
        "attn_norm.weight": (5120,),
        "post_attention_norm.weight": (5120,),
        "attn_q.weight": (12288, 5120),
        "attn_k.weight": (1024, 5120),
        "attn_v.weight": (1024, 5120),
        "attn_output.weight": (5120, 6144),
        "attn_q_norm.weight": (256,),
        "attn_k_norm.weight": (256,),
        "ffn_gate.weight": (17408, 5120),
        "ffn_up.weight": (17408, 5120),
        "ffn_down.weight": (5120, 17408),
    }
    delta = {
        "attn_norm.weight": (5120,),
        "post_attention_norm.weight": (5120,),
        "attn_qkv.weight": (10240, 5120),
        "attn_gate.weight": (6144, 5120),
        "ssm_conv1d.weight": (10240, 4),
        "ssm_alpha.weight": (48, 5120),
        "ssm_beta.weight": (48, 5120),
        "ssm_dt.bias": (48,),
        "ssm_a": (48,),
        "ssm_norm.weight": (128,),
        "ssm_out.weight": (5120, 6144),
        "ffn_gate.weight": (17408, 5120),
        "ffn_up.weight": (17408, 5120),
        "ffn_down.weight": (5120, 17408),
    }
    expected = {"token_embd.weight": (248320, 5120), "output.weight": (248320, 5120), "output_norm.weight": (5120,)}
    for i in range(64):
        layer = attention if i % 4 == 3 else delta
        expected |= {f"blk.{i}.{name}": size for name, size in layer.items()}
    assert sizes == expected


def test_27b_metadata() -> None:
    keys = find_shape("qwen3.6-27b").metadata()
    expected = {
        "block_count": 64,
        "context_length": 262144,
        "embedding_length": 5120,
        "feed_forward_length": 17408,
        "attention.head_count": 24,
        "attention.head_count_kv": 4,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
        "ssm.time_step_rank": 48,
        "ssm.inner_size": 6144,
    }
    plain = {key: np.asarray(value).tolist() for key, value in keys.items()}
    assert {key.removeprefix("qwen35."): value for key, value in plain.items() if key[0] == "q"} == expected
    assert plain["general.architecture"] == "qwen35"


def test_0_6b_is_the_published_model() -> None:
    plan = tensor_plan("qwen3-0.6b", "bf16")
    sizes = {name: size for name, size, _ in plan}
    assert len(plan) == 310
    assert sum(prod(size) for size in sizes.values()) == 596_049_920
    assert "output.weight" not in sizes
    assert sizes["token_embd.weight"] == (151936, 1024)
    assert sizes["blk.27.attn_q.weight"] == (2048, 1024)
    assert sizes["blk.0.attn_k.weight"] == (1024, 1024)
    assert sizes["blk.0.attn_output.weight"] == (1024, 2048)
    assert sizes["blk.0.ffn_norm.weight"] == (1024,)
    formats = {name: fmt.name for name, _, fmt in tensor_plan("qwen3-0.6b", "q4_k_m")}
    assert formats["token_embd.weight"] == "Q6_K", "a tied embedding takes the format of the output"
    assert [round(plan_bytes("qwen3-0.6b", kind) / 1e5) for kind in ("bf16", "q8_0", "q4_k_m")] == [11922, 6335, 3908]


@pytest.mark.parametrize(
    ("shape", "parameters", "tied"),
    [
        ("llama-3.1-70b", 70_553_706_496, False),
        ("llama-3.1-8b", 8_030_261_248, False),
        ("llama-3.2-3b", 3_212_749_824, True),
        ("llama-3.2-1b", 1_235_814_400, True),
        ("qwen2.5-32b", 32_763_876_352, False),
        ("qwen2.5-7b", 7_615_616_512, False),
        ("qwen2.5-0.5b", 494_032_768, True),
        ("gpt-oss-20b", 20_914_757_184, False),
        ("gpt-oss-120b", 116_829_156_672, False),
    ],
)
def test_published_models_have_their_parameters(shape: str, parameters: int, tied: bool) -> None:
    """Counts are those that Hugging Face gives for the files of weights."""
    plan = {name: size for name, size, _ in tensor_plan(shape, "bf16")}
    assert sum(prod(size) for name, size in plan.items() if name != "rope_freqs.weight") == parameters
    assert ("output.weight" not in plan) == tied == find_shape(shape).tied
    assert ("rope_freqs.weight" in plan) == shape.startswith("llama")
    assert ("blk.0.attn_q.bias" in plan) == shape.startswith(("qwen2.5", "gpt-oss"))


def test_gpt_oss_is_the_published_file() -> None:
    """Tensors by format, and bytes of the data, as a published file of 20B in MXFP4 has them."""
    plan = tensor_plan("gpt-oss-20b", find_shape("gpt-oss-20b").usual_type)
    assert Counter(fmt.name for *_, fmt in plan) == {"F32": 289, "Q8_0": 98, "MXFP4": 72}
    sizes = {name: size for name, size, _ in plan}
    assert sizes["blk.23.ffn_down_exps.weight"] == (32, 2880, 2880)
    assert sizes["blk.0.ffn_gate_exps.bias"] == (32, 2880)
    assert sizes["blk.0.attn_q.weight"] == (4096, 2880)


@pytest.mark.parametrize("shape", list_shapes())
def test_every_plan_is_whole_blocks_and_keeps_vectors(shape: str) -> None:
    """In every file type: a test of each would take longer to begin and to report than to run."""
    for file_type in FILE_TYPES:
        for name, size, fmt in tensor_plan(shape, file_type):
            assert fmt.row_bytes(size[-1]) > 0, (file_type, name)
            vector = len(size) == 1 or "conv1d" in name or name.endswith(("ffn_gate_inp.weight", ".bias"))
            assert (fmt is F32) == (vector or file_type == "f32"), (file_type, name)
            if not vector and file_type not in MIXES:
                whole = size[-1] % format_by_name(file_type).block_size == 0
                assert (fmt.name.lower() == file_type) == whole, (file_type, name)


def test_rows_that_are_no_whole_blocks_fall_back() -> None:
    def pick(file_type: str, n: int) -> str:
        return tensor_format(file_type, "blk.0.attn_q.weight", (8, n), layers=4, tied=False).name

    assert [pick("q4_k_m", n) for n in (512, 384, 100)] == ["Q4_K", "Q5_0", "F16"]
    assert [pick("q8_0", n) for n in (96, 100)] == ["Q8_0", "F16"]
    wide = {"q5_k": "Q5_1", "q6_k": "Q8_0", "iq4_xs": "IQ4_NL", "q3_k": "IQ4_NL", "iq1_m": "IQ4_NL", "tq2_0": "Q4_0"}
    assert {name: pick(name, 384) for name in wide} == wide
    assert pick("nvfp4", 96) == "F16"


def test_every_format_is_a_file_type_with_the_number_of_gguf() -> None:
    """The mixes aside, each name of the package's own list with the family's plain or smallest kind."""
    assert set(FILE_TYPES) == {fmt.name.lower() for fmt in FORMATS.values()} | {*MIXES}
    for name, number in FILE_TYPES.items():
        said = LlamaFileType(number).name
        assert name.upper() in said or (name == "ud-q4_k_xl" and said == "MOSTLY_Q4_K_M")
    assert len(set(FILE_TYPES.values())) == len(FILE_TYPES) - 2


def test_the_dynamic_mix_of_27b_is_like_the_published_file() -> None:
    """Its size, its eight formats, and the tensors whose format is known from published lists."""
    formats = {name: fmt.name for name, _, fmt in tensor_plan("qwen3.6-27b", "ud-q4_k_xl")}
    assert plan_bytes("qwen3.6-27b", "ud-q4_k_xl") == pytest.approx(17_612_564_704, rel=0.001)
    known = {
        "blk.0.ffn_up.weight": "Q3_K",
        "blk.0.ffn_down.weight": "IQ4_XS",
        "blk.3.ffn_down.weight": "IQ4_NL",
        "blk.11.ffn_gate.weight": "IQ3_S",
        "blk.0.attn_qkv.weight": "Q5_K",
        "blk.3.attn_output.weight": "Q6_K",
        "blk.0.ssm_alpha.weight": "Q8_0",
        "output.weight": "Q6_K",
    }
    assert known.items() <= formats.items()
    held: Counter[str] = Counter()
    for _, size, fmt in tensor_plan("qwen3.6-27b", "ud-q4_k_xl"):
        held[fmt.name] += fmt.nbytes(size)
    assert set(held) == {"Q3_K", "IQ3_S", "IQ4_NL", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "F32"}
    assert held["IQ3_S"] < 0.03 * held.total()
    tiny = {fmt.name for *_, fmt in tensor_plan("tiny-qwen35", "ud-q4_k_xl")}
    assert tiny == set(held), "a model of four layers has them all"


def test_unknown_names_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^unknown shape 'qwen3.6-27B'; did you mean 'qwen3.6-27b'.*[^\n]$"):
        tensor_plan("qwen3.6-27B", "q4_k_m")
    with pytest.raises(ConfigError, match=r"^unknown file type 'q4_km'; did you mean 'q4_k_m'.*[^\n]$"):
        write_synthetic(tmp_path / "x.gguf", "tiny-qwen3", "q4_km")
    with pytest.raises(ConfigError, match=r"^seed -1 is negative"):
        write_synthetic(tmp_path / "x.gguf", "tiny-qwen3", "f16", seed=-1)
    assert not list(tmp_path.iterdir())
