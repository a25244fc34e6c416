"""A picture a family of kernels, from records made up here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sp.studies.plots import roofline
from sp.studies.plots.roofline import VIEWS, draw_families, family_figure, points, roof

CONFIGS = {
    "project": [{"type": kind, "m": m, "n": 64, "k": 64} for kind in ("Q4_K", "BF16") for m in (1, 64, 8192)],
    "matmul_bytes": [
        {"math": precision, "epilogue": "store_f32", "k": 5120, "n": 17408} for precision in ("bf16", "int8", "fp8")
    ],
    "byte_attention": [
        {"math": precision, "head_dim": 64, "tokens": 8192, "read": 0.05} for precision in ("f16", "int8")
    ],
    "experts": [{"part": "gated", "tokens": 8}],
    "paged_attention": [{"head_dim": 128, "rows": rows, "tokens": 32768} for rows in (1, 32768)],
    "delta": [{"tokens": tokens} for tokens in (1, 16)],
    "flashprefill": [{"selector": "FlashPrefill", "head_dim": 128, "stage": stage} for stage in ("select", "attend")],
    "importance": [{"head_dim": 128, "tokens": 32768}],
    "rows": [{"op": "rms_norm", "rows": 64}, {"op": "swiglu", "rows": 64}],
    "memory": [{"copy": 1 << 29}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(roofline, "is_current", lambda entry: True)
    for family, configs in CONFIGS.items():
        lines = []
        for place, config in enumerate(configs):
            rate = 0 if family in ("rows", "memory") else 2.0 * 10**place
            metrics = {"tflops": rate, "gb_s": 1000.0 + place}
            entry = {"bench": family, "config": {**config, "path": "portable"}, "metrics": metrics, "gpu": "Card"}
            lines.append(json.dumps(entry) + "\n")
        (tmp_path / f"{family}.jsonl").write_text("".join(lines))
    return tmp_path


def test_every_family_is_drawn(folder: Path) -> None:
    pictures = draw_families(points(folder), folder / "pictures")
    assert [picture.name for picture in pictures] == [f"roofline-{family}.png" for family in VIEWS]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_a_picture_holds_its_points_and_the_limits(folder: Path) -> None:
    found = points(folder)
    mine = [point for point in found if point.family == "project"]
    (axes,) = family_figure(mine, "project", roof(found)).axes
    drawn = sorted(y for line in axes.lines[1:] for y in line.get_ydata())
    assert drawn == sorted(point.tflops for point in mine)
    assert {"1", "64", "8K"} <= {text.get_text() for text in axes.texts}
    assert any(text.get_text().startswith(f"{roof(found)[0]:,.0f} GB/s, ") for text in axes.texts)


def test_eight_bits_have_a_ceiling_of_their_own(folder: Path) -> None:
    found = points(folder)
    assert roof(found)[1:] == (max(p.tflops for p in found if p.config.get("math") not in ("int8", "fp8")), 8.0 * 25)
    for family, ceilings in (("byte_attention", 2), ("matmul_bytes", 2), ("project", 1)):
        (axes,) = family_figure([p for p in found if p.family == family], family, roof(found)).axes
        words = [t.get_text() for t in axes.texts if "FLOP/s" in t.get_text() or "TOP/s" in t.get_text()]
        assert len(words) == ceilings
        assert any("TOP/s in 8 bits" in text for text in words) is (ceilings == 2)


def test_bandwidth_alone_is_drawn_as_bars(folder: Path) -> None:
    found = points(folder)
    (axes,) = family_figure([p for p in found if p.family == "rows"], "rows", roof(found)).axes
    assert [bar.get_width() for bar in axes.patches] == [1000.0, 1001.0]


def test_records_of_other_studies_are_left_out(folder: Path) -> None:
    for family in CONFIGS:
        if family not in ("memory", "delta"):
            (folder / f"{family}.jsonl").unlink()
    config = {"type": "Q4_K", "m": 5, "n": 64, "k": 64, "path": "portable"}
    entry = {"bench": "matmul", "config": config, "metrics": {"tflops": 1.0, "gb_s": 1.0}, "gpu": "Card"}
    (folder / "matmul.jsonl").write_text(json.dumps(entry) + "\n")
    pictures = draw_families(points(folder), folder)
    assert [picture.name for picture in pictures] == ["roofline-delta.png", "roofline-memory.png"]
