"""Names of formats of cached keys and values: read, refused in one line, put in order, and text wherever they go."""

from __future__ import annotations

import json
import pickle

import pytest
import yaml

from sp.config import from_mapping, from_text
from sp.errors import ConfigError
from sp.models.cache.kv_type import DEVICE_KV, FORMATS, NAMES, KVType, cache_name, checked_kv, rotates
from sp.quant import F16, F32, Q4_0, Q5_0, Q5_1, Q8_0
from sp.quant.cached import K4, K5, V4
from sp.session import ConversationOptions, RunOptions

SIDES = {
    "f32": (F32, F32),
    "f16": (F16, F16),
    "q8_0": (Q8_0, Q8_0),
    "q5_1": (Q5_1, Q5_1),
    "q5_0": (Q5_0, Q5_0),
    "5bit": (K5, V4),
    "4bit": (K4, V4),
    "q4_0": (Q4_0, Q4_0),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_a_format_of_each_side(name: str) -> None:
    kv = KVType.parse(name, "--kv")
    assert (kv.k, kv.v) == SIDES[name]
    assert kv == name
    assert KVType.parse(f"k={kv.sides[0]},v={kv.sides[1]}", "--kv") == name, "the shorter way to say it"


def test_all_names_are_known_here() -> None:
    assert set(NAMES) == set(SIDES)


@pytest.mark.parametrize("k", [name for name in FORMATS if name != "v4"])
@pytest.mark.parametrize("v", [name for name in FORMATS if name not in ("k5", "k4")])
def test_any_two_go_together_and_are_named_in_one_way(k: str, v: str) -> None:
    kv = KVType.parse(f"v={v},k={k}", "--kv")
    assert kv == KVType.parse(f"k={k},v={v}", "--kv") == KVType.parse(kv, "--kv")
    assert (kv.k, kv.v) == (FORMATS[k], FORMATS[v])
    assert kv.sides == (k, v)
    assert kv.packed == (k not in ("f16", "f32") or v not in ("f16", "f32"))
    assert kv.bits_per_value == (FORMATS[k].bits_per_value + FORMATS[v].bits_per_value) / 2
    assert kv.on_device == ({k, v} <= {"f16", "q8_0", "q4_0", "k5", "k4", "v4"})
    assert kv.takes([64, 128]) is True
    assert kv.takes([64, 96]) is not bool({k, v} & {"k5", "k4", "v4"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("q4_1", "--kv is 'q4_1'; did you mean"),
        ("fp16", "did you mean 'f16'"),
        ("", "--kv"),
        ("F16", "did you mean 'f16'"),
        ("k5", "k5 stores keys only; pass 5bit"),
        ("k4", "k4 stores keys only; pass 4bit, or a format for each side, as in k=k4,v=v4"),
        ("v4", "v4 stores values only; pass 5bit"),
        ("k=q8_0", "names one side; pass both, as in k=q8_0,v=q4_0"),
        ("v=v4", "names one side"),
        ("k=q8_0,k=q4_0", "takes one format, or one for each side as in k=q8_0,v=q4_0"),
        ("q=q8_0,v=q4_0", "takes one format, or one for each side"),
        ("k=q8_0,v=q4_0,k=f16", "takes one format, or one for each side"),
        ("k=q8_0,", "takes one format, or one for each side"),
        ("k=v4,v=v4", "format of keys"),
        ("k=q8_0,v=k5", "format of values"),
        ("k=q8_0,v=k4", "format of values"),
        ("k=5bit,v=f16", "format of keys"),
        ("k=q8,v=q4_0", "did you mean 'q8_0'"),
        ("k=,v=q4_0", "format of keys"),
        ("k=q8_0, v=q4_0", "takes one format, or one for each side"),
        ("q8_0\nq4_0", "--kv"),
    ],
)
def test_anything_else_is_refused_in_one_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KVType.parse(text, "--kv")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "--kv" in str(refused.value)


def test_what_is_known_of_a_side_is_of_that_side() -> None:
    with pytest.raises(ConfigError) as refused:
        KVType.parse("k=nothing,v=f16", "--kv")
    assert "k4, k5" in str(refused.value)
    assert "v4" not in str(refused.value)


def test_planning_goes_from_the_exact_one_to_the_one_that_rounds_most() -> None:
    assert DEVICE_KV == ("f16", "q8_0", "5bit", "4bit", "q4_0")
    bits = [kv.bits_per_value for kv in DEVICE_KV]
    assert bits == sorted(bits, reverse=True) == [16.0, 8.5, 5.0, 4.5, 4.5]
    every = [KVType(name).bits_per_value for name in NAMES]
    assert every == sorted(every, reverse=True)


@pytest.mark.parametrize("kv", ["q4_0", "5bit", "4bit", "k=q8_0,v=q4_0"])
def test_it_is_text_in_json_yaml_and_pickles(kv: str) -> None:
    kv_type = KVType.parse(kv, "kv")
    assert json.loads(json.dumps({"kv": kv_type})) == {"kv": kv}
    assert json.dumps(kv_type) == json.dumps(kv)
    assert f"{kv_type}" == str(kv_type) == kv
    assert hash(kv_type) == hash(kv)
    assert yaml.safe_load(f"kv: {kv}") == {"kv": kv}
    assert pickle.loads(pickle.dumps(kv_type)) == kv


@pytest.mark.parametrize("kv", ["q4_0", "5bit", "4bit", "k=q8_0,v=q4_0", "v=q4_0,k=q8_0"])
def test_options_take_it_from_text_and_from_mappings(kv: str) -> None:
    told = KVType.parse(kv, "kv")
    assert from_text(kv, KVType, "--kv") == told
    options = from_mapping(RunOptions, {"kv": kv}, "run")
    assert isinstance(options.kv, KVType)
    assert options.kv == RunOptions(kv=kv).kv == told
    assert isinstance(ConversationOptions(keys=kv).keys, KVType)


@pytest.mark.parametrize("given", ["q4_1", 5, 4, None, "k5", "k4", True])
def test_options_refuse_others_in_one_line(given: object) -> None:
    for cls, name in ((RunOptions, "kv"), (ConversationOptions, "keys")):
        with pytest.raises(ConfigError) as refused:
            cls(**{name: given})
        assert name in str(refused.value)
        assert "\n" not in str(refused.value)


def test_packed_ones_are_rotated_and_pairs_always() -> None:
    assert {kv: rotates(kv, None) for kv in NAMES} == {kv: kv not in ("f16", "f32") for kv in NAMES}
    assert rotates("k=f16,v=q4_0", None)
    assert not rotates("q8_0", False)
    assert rotates("f16", True)
    assert cache_name("5bit", None) == "5bit rotated"
    assert cache_name("k=q8_0,v=q4_0", False) == "k=q8_0,v=q4_0"
    for kv in ("5bit", "4bit", "k=k5,v=f16", "k=k4,v=f16", "k=f16,v=v4"):
        with pytest.raises(ConfigError, match="designed for rotated keys and values") as refused:
            rotates(kv, False)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kv", "head_dim", "rotate", "device", "told"),
    [
        ("q5_0", 128, True, "cuda", "KV format q5_0 is for the CPU; the GPU has f16, q8_0, 5bit, 4bit and q4_0"),
        ("k=f16,v=f32", 128, False, "cuda", "KV format k=f16,v=f32 is for the CPU"),
        ("5bit", 96, True, "cpu", "packs 64 values per block, which does not divide the head size 96"),
        ("k=f16,v=q4_0", 48, True, "cpu", "packs 32 values per block"),
        ("f16", 7, True, "cpu", "their size is odd"),
        ("nothing", 64, True, "cpu", "kv is 'nothing'"),
    ],
)
def test_heads_and_devices_that_do_not_suit_are_refused(kv, head_dim, rotate, device, told) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_kv(kv, head_dim, rotate, device)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
