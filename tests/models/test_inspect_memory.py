"""What `sp inspect` reckons a model to take is what is reserved for it, and what requests were measured to take."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from dry_walk import walked
from hollow_files import FEW, write_hollow
from rich.console import Console

from sp.bench.record import newest
from sp.gguf import GGUFFile
from sp.models import ModelConfig, read_config
from sp.models.cache.cache import Cache
from sp.models.synthetic.dflash_synthetic import write_synthetic_draft
from sp.models.synthetic.shapes import find_shape, list_shapes
from sp.models.synthetic.synthetic import write_synthetic
from sp.planning.gpus import (
    ANSWER,
    GPUS,
    LARGEST_DRAFTER,
    Drafter,
    drafters_for,
    gpu_rows,
    need,
    weights_bytes,
)
from sp.planning.inspect import inspect_file
from sp.planning.memory import device_weights, kv_bytes, prefill_bytes, scoring_bytes, state_bytes, unpacked_bytes
from sp.planning.tables import render
from sp.quant import FORMATS, Math
from sp.session.loaded import embedded
from sp.session.measured import gpus_of

RECORDS = Path(__file__).parents[2] / "results" / "nvidia-h200" / "ttft.jsonl"
LOADED = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
from sp.models import load_model
from sp.session.measured import gpus_of
print(*(load_model(path, device="cuda").nbytes for path in sys.argv[2:]))
"""
TINY = [name for name in list_shapes() if name.startswith("tiny-")]


def file_formats(path: Path) -> dict[str, Any]:
    with GGUFFile.open(path) as file:
        return {name: FORMATS[info.ggml_type] for name, info in file.tensors.items()}


def test_weights_are_as_large_as_those_on_the_device(tmp_path: Path) -> None:
    cases = [(name, file_type) for name in TINY for file_type in ("q4_k_m", "ud-q4_k_xl", "f32")]
    paths = [write_synthetic(tmp_path / f"{'-'.join(case)}.gguf", *case) for case in cases]
    paths.append(embedded("target"))
    for path, held in zip(paths, walked(LOADED, *map(str, paths)).split(), strict=True):
        with GGUFFile.open(path) as file:
            config = read_config(file)
        assert weights_bytes(config, file_formats(path)) == int(held), path.name


def test_what_the_device_holds_wider_than_the_file_is_counted_so(tmp_path: Path) -> None:
    """IQ3_S: 256 codes of 4 bits, 8 scales and a delta of 2 bytes where the file has 110 bytes."""
    info = inspect_file(write_hollow(tmp_path / "m.gguf", "qwen3.6-27b", "ud-q4_k_xl"))
    [row] = [row for row in info["device"]["formats"] if row["source"] == "IQ3_S"]
    assert row["nbytes"] * 110 == row["source_bytes"] * (128 + 8 + 2)
    assert row["kernels"] == "native"
    assert info["device"]["bytes"] > sum(row["source_bytes"] for row in info["device"]["formats"])


@pytest.mark.parametrize("kv", ["f16", "q8_0", "5bit", "4bit", "q4_0"])
@pytest.mark.parametrize("tokens", [1, 128, 129, 5000])
@pytest.mark.parametrize("shape", [*TINY, "qwen3-0.6b"])
def test_caches_are_as_large_as_those_of_an_answer(shape: str, tokens: int, kv: str) -> None:
    config = find_shape(shape).config
    cache = Cache(config, tokens, kv)
    assert kv_bytes(config, tokens, kv) + state_bytes(config) == cache.nbytes


@pytest.mark.parametrize("kv", ["q8_0", "5bit", "4bit", "q4_0", "k=f16,v=q4_0", "k=k5,v=f16"])
@pytest.mark.parametrize("name", ["qwen3.6-27b", "gemma-4-31b", "llama-3.1-8b"])
@pytest.mark.parametrize("tokens", [1, 128, 129, 100_000])
def test_reading_counts_the_unpacked_pages_of_the_widest_layer(name: str, tokens: int, kv: str) -> None:
    config = find_shape(name).config
    pages = -(-tokens // 128)
    layers = [4 * sizes.kv_heads * sizes.head_dim * 128 * pages for sizes in config.head_sizes]
    assert unpacked_bytes(config, tokens, kv) == max(layers)
    assert unpacked_bytes(config, tokens, "f16") == 0
    # A bound of 16 bits for all keys and values of a layer is there for float16 too; pages are whole.
    more = 4 * max(sizes.kv_heads * sizes.head_dim for sizes in config.head_sizes) * (128 * pages - tokens)
    assert prefill_bytes(config, tokens, kv=kv) - prefill_bytes(config, tokens) == more
    held = kv_bytes(config, tokens + ANSWER, kv) - kv_bytes(config, tokens + ANSWER, "f16")
    found = [need(config, 1 << 30, None, tokens, which).together for which in (kv, "f16")]
    assert found[0] - found[1] == held + more


@pytest.mark.parametrize("kv", ["f32", "q5_1", "k=q8_0,v=q4_0", "k=k4,v=q8_0"])
def test_bytes_of_any_type_are_those_of_its_cache(kv: str) -> None:
    config = find_shape("tiny-qwen3").config
    assert kv_bytes(config, 300, kv) == Cache(config, 300, kv).nbytes


def recorded() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Requests of one GPU without a limit, of lengths for which memory is asked about, both ways of reading.

    Not those after a full prefill with an f16 cache, which stays in the pool: their peak is not their own; nor those
    that kept weights rounded beside the packed ones, which memory that is asked for has no room for.
    """
    found = []
    for record in newest(RECORDS):
        config, metrics = record["config"], record["metrics"]
        usual = config["scorer"] in (None, "tail") and config["keep_ratio"] in (1.0, 0.05)
        usual = usual and not config.get("kept_bytes")
        usual = usual and (config["keep_ratio"] == 1.0 or config["kv"] != "f16") and max(gpus_of(config)) == 1
        if config["vram"] is None and usual and metrics["prompt_tokens"] >= 8192 and metrics["peak_bytes"]:
            found.append((f"{config['drafter']} {metrics['prompt_tokens']}", config, metrics))
    return found


def test_requests_took_what_is_reckoned_and_up_to_a_tenth_less() -> None:
    cases = recorded()
    assert len(cases) >= 9
    assert {config["target"] for _, config, _ in cases} == {
        "qwen3.6-27b-q4_k_m.synthetic",
        "llama-3.1-70b-q4_k_m.synthetic",
        "qwen3.6-35b-a3b-q4_k_m.synthetic",
    }
    for what, config, metrics in cases:
        target, weights = synthetic_weights(config["target"])
        drafter = None if config["drafter"] is None else Drafter("d", *synthetic_weights(config["drafter"]))
        reckoned = need(target, weights, drafter, metrics["prompt_tokens"], config["kv"].split()[0]).together
        read = metrics["prompt_tokens"] if drafter is None else metrics["kept_tokens"]
        reckoned += prefill_bytes(target, read, Math(config["math"])) - prefill_bytes(target, read)
        assert 1 <= reckoned / metrics["peak_bytes"] <= 1.1, (what, reckoned, metrics["peak_bytes"])


@cache
def synthetic_weights(name: str) -> tuple[ModelConfig, int]:
    """Configuration and bytes on the device of ``SHAPE-TYPE.synthetic``."""
    shape, _, file_type = name.removesuffix(".synthetic").rpartition("-")
    found = find_shape(shape)
    return found.config, weights_bytes(found.config, {n: fmt for n, _, fmt in found.plan(file_type)})


def test_gpus_hold_what_fits_them() -> None:
    target = find_shape("qwen3.6-27b").config
    [drafter, *_] = drafters_for(target, 27 * 10**9)
    weights = 16 << 30
    rows = gpu_rows(target, weights, [drafter], "f16", [8192, 65536])
    assert [row["card"] for row in rows] == list(GPUS)
    for row in rows:
        room = (row["card"] << 30) - (1 << 30)
        fits = [n for n in (8192, 65536) if need(target, weights, None, n - 256, "f16").together <= room]
        assert row["full"] == (fits[-1] if fits else None)
        pair = row["drafters"][drafter.name]
        assert (pair["together"] or 0) <= (pair["by_turns"] or 0)
    assert rows[0]["full"] is None
    assert rows[-1]["full"] == 65536
    assert rows[0]["drafters"][drafter.name] == {"together": None, "by_turns": None}
    assert any(row["drafters"][drafter.name]["by_turns"] != row["drafters"][drafter.name]["together"] for row in (
        gpu_rows(target, weights, [replace(drafter, weights=6 << 30)], "f16", [8192])))  # fmt: skip


def test_a_window_bounds_what_is_read_in_full_alone() -> None:
    target = replace(find_shape("qwen3.6-27b").config, context=32768)
    [drafter, *_] = drafters_for(target, 27 * 10**9)
    last = gpu_rows(target, 16 << 30, [drafter], "q4_0")[-1]
    assert last["full"] == 32768
    assert last["drafters"][drafter.name]["together"] == 262144


def test_by_turns_needs_the_larger_of_both() -> None:
    config = find_shape("qwen3.6-27b").config
    drafter = Drafter("d", find_shape("qwen3-0.6b").config, 1 << 30)
    tokens, weights = 100_000, 15 << 30
    kept = ceil(0.05 * tokens)
    held = weights + state_bytes(config) + kv_bytes(config, kept + 256, "f16")
    reading, scoring = held + prefill_bytes(config, kept), scoring_bytes(drafter.config, tokens)
    found = need(config, weights, drafter, tokens, "f16")
    assert found.by_turns == max(reading, drafter.weights + scoring)
    assert found.together == drafter.weights + max(reading, held + scoring)


def test_drafters_are_small_and_the_nearest_kin_comes_first() -> None:
    for name in list_shapes():
        shape = find_shape(name)
        size = sum(tensor.size for tensor in shape.tensors())
        found = drafters_for(shape.config, size)
        assert all(not one.name.startswith("tiny-") for one in found)
        if size > 4 * LARGEST_DRAFTER:
            family = shape.config.architecture.removesuffix("moe").removesuffix("next").rstrip("0123456789")
            kin = [one.name for one in found if one.config.architecture.startswith(family)]
            alone = family in ("gpt-oss", "mistral", "muse-glimmer")  # of which nothing so small is published
            assert kin[:1] == ([] if alone else [found[0].name]), name


def test_a_large_model_at_a_glance(tmp_path: Path) -> None:
    path = write_hollow(tmp_path / "big.gguf", "qwen3.6-27b", "q4_k_m", None)
    info = inspect_file(path)
    assert json.loads(json.dumps(info)) == info
    assert info["warnings"] == []
    assert info["family"] | {"rope": None} == {
        "architecture": "qwen35",
        "kind": "hybrid",
        "experts": None,
        "eight_bits": {"weights": 388, "matrices": 496},
        "windows": None,
        "layers": 64,
        "attention_layers": 16,
        "delta_layers": 48,
        "heads": 24,
        "kv_heads": 4,
        "head_dim": 256,
        "global_heads": None,
        "context": 262144,
        "rope": None,
        "as_drafter": "window 262,144 tokens; longer prompts are extrapolated, because it has recurrent layers",
    }
    rope = {"base": 1e7, "dim": 64, "pairing": "halves", "scaling": None, "magnitude": 1.0}
    assert info["family"]["rope"] == rope
    device = info["device"]
    assert device["bytes"] == sum(row["nbytes"] for row in device["formats"])
    assert device["bytes"] == pytest.approx(info["bytes"], rel=0.01)
    assert {row["source"]: row["kernels"] for row in device["formats"]} == dict.fromkeys(
        ("Q4_K", "Q6_K", "F32"), "native"
    )
    assert device["kv_bytes"]["f16"]["262144"] == 16 * 2 * 262144 * 4 * 256 * 2
    assert info["cards"]["rows"][0]["card"] == 12
    assert info["command"].startswith(f"sp run --target {path} --drafter ")
    lines = shown(info).splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(line.rstrip() for line in lines)
    for piece in (
        "hybrid: 16 layers of attention, 48 of Gated DeltaNet",
        "KV cache",
        "24 GB GPU",
        "by turns",
        "states",
    ):
        assert piece in text, text


@pytest.mark.parametrize("shape", [name for name in list_shapes() if not name.startswith("tiny-")])
def test_every_published_shape_is_told_within_80_columns(shape: str, tmp_path: Path) -> None:
    whole = shape == "llama-3.2-1b"  # of the other vocabularies one each is told whole in the tests around this one
    info = inspect_file(write_hollow(tmp_path / "m.gguf", shape, "q4_k_m", None if whole else FEW))
    assert info["warnings"] == []
    assert info["family"]["layers"] == find_shape(shape).config.layers
    assert info["cards"] is not None
    assert max(map(len, shown(info).splitlines())) <= 80


def test_a_format_without_kernels_is_told_with_its_bytes(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "tiny-qwen3", "f32")
    rows = inspect_file(path)["device"]["formats"]
    [row] = [row for row in rows if row["source"] == "F32"]
    assert row["kernels"] == "native, as BF16, as 3 x BF16"  # the table and vectors; wide matrices; narrow ones
    assert row["targets"] == ["F32", "BF16", "3 x BF16"]


def test_a_small_model_is_proposed_as_a_drafter_and_a_draft_as_a_draft(tmp_path: Path) -> None:
    path = write_hollow(tmp_path / "small.gguf", "qwen3-0.6b", "bf16", None)
    info = inspect_file(path)
    assert f"--drafter {path}" in info["command"]
    assert info["cards"]["rows"][0]["drafters"] == {}
    draft = write_synthetic_draft(tmp_path / "draft.gguf", "dflash-tiny-qwen35", "q8_0")
    assert "--decode ddtree --speculator" in inspect_file(draft)["command"]
    assert max(map(len, shown(info).splitlines())) <= 80


def test_what_is_no_whole_model_has_neither_memory_nor_gpus(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "tiny-qwen3", "q8_0")
    with GGUFFile.open(path) as file:
        formats = {name: FORMATS[info.ggml_type] for name, info in file.tensors.items() if "blk.1" not in name}
        with pytest.raises(KeyError):
            device_weights(read_config(file), formats)


def shown(info: dict[str, Any]) -> str:
    console = Console(width=80, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(render(info))
    return console.export_text()
