"""A picture of who holds what on several GPUs: stripes of a prompt, and bytes of both models; run it to draw it."""

from __future__ import annotations

from pathlib import Path

from many_gpus_page import LONG, MODELS, TYPE, keys_and_values, tensor_bytes
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from times_page import PAIR

from sp.models import SparseAttention
from sp.models.cache.context_parallel_cache import ContextChunks
from sp.models.file.weights import layer_of
from sp.models.layer.shard_spec import ShardSpec
from sp.models.run.context_parallel import last_chunk_pages_less
from sp.models.synthetic.shapes import find_shape
from sp.ops.sparse.flashprefill import TopDensity
from sp.studies.figures import INK, save_figure

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "who-holds-what.png"
GPUS, TAIL = 4, 8
COLOURS = ("#1c7ed6", "#2f9e44", "#f08c00", "#ae3ec9")
PARTS = {
    "embedding": "#adb5bd", "mixers": "#1c7ed6", "feed-forward": "#4dabf7", "head": "#a5d8ff",
    "keys and values": "#f08c00", "drafter": "#2f9e44", "drafter's keys": "#b2f2bb",
}  # fmt: skip


def held(size: int) -> dict[str, float]:
    """GB on each of so many GPUs, by part; those of norms are left out.

    >>> {name: round(gb, 2) for name, gb in held(2).items()}["keys and values"]
    4.29
    """
    config, drafter = ShardSpec(0, size).config(find_shape(MODELS[0]).config), find_shape(PAIR[1][0])
    found = dict.fromkeys(PARTS, 0.0)
    for tensor, nbytes in tensor_bytes(MODELS[0], size):
        if tensor.kind not in ("matrix", "stack"):
            continue
        part = "feed-forward" if "ffn" in tensor.name else "mixers"
        if layer_of(tensor.name) is None:
            part = "head" if tensor.name == "output.weight" else "embedding"
        found[part] += nbytes / 1e9
    found["keys and values"] = keys_and_values(config) / 1e9
    found["drafter"] = sum(fmt.nbytes(dims) for _, dims, fmt in drafter.plan(PAIR[1][1])) / 1e9
    layer = LONG * 2 * drafter.config.kv_heads * drafter.config.head_dim * 2
    found["drafter's keys"] = (1 if size == 1 else 2) * layer / 1e9
    return found


def figure() -> Figure:
    """Stripes of a prompt at density 5 %, with the pairs that each GPU may attend to, and what each GPU holds."""
    drawn = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = drawn.subplots(1, 2, width_ratios=(1.1, 1))
    _stripes(left)
    _bytes(right)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return drawn


def _stripes(axes: Axes) -> None:
    attend = SparseAttention(TopDensity(0.05))
    stripes = ContextChunks(LONG, GPUS, TAIL, last_chunk_pages_less(find_shape(PAIR[1][0]).config, attend, LONG))
    for gpu in range(GPUS):
        for start, stop in stripes.of(gpu):
            span = [start / 1024, stop / 1024]
            axes.fill_between(span, span, color=COLOURS[gpu], linewidth=0)
    axes.set_xlabel("queries: place in the prompt (K tokens)", color=INK)
    axes.set_ylabel("keys that they may see (K tokens)", color=INK)
    axes.set_title("a drafter reads: a stripe near each end", fontsize=10, color=INK)
    named = [f"GPU {gpu}: {_pairs(stripes, gpu):.1%}" for gpu in range(GPUS)]
    axes.legend(
        handles=[Patch(color=colour, label=name) for colour, name in zip(COLOURS, named, strict=True)],
        fontsize=7, frameon=False, title="share of the pairs", title_fontsize=7, loc="upper left",
    )  # fmt: skip


def _pairs(stripes: ContextChunks, gpu: int) -> float:
    """Share of all pairs of queries and keys that a GPU attends to."""
    return float(sum(stop * (stop + 1) - start * (start + 1) for start, stop in stripes.of(gpu)) / (LONG * (LONG + 1)))


def _bytes(axes: Axes) -> None:
    for place, size in enumerate((1, 2, 4)):
        below = 0.0
        for part, gigabytes in held(size).items():
            axes.bar(place, gigabytes, 0.62, bottom=below, color=PARTS[part])
            below += gigabytes
        axes.text(place, below + 0.3, f"{below:.1f}", ha="center", fontsize=8, color=INK)
    axes.set_xticks(range(3), ["1 GPU", "each of 2", "each of 4"])
    axes.set_ylabel("GB at 128K tokens", color=INK)
    axes.set_title(f"{MODELS[0]} {TYPE.upper()} and {PAIR[1][0]}", fontsize=10, color=INK)
    axes.legend(
        handles=[Patch(color=colour, label=part) for part, colour in reversed(PARTS.items())], fontsize=7, frameon=False
    )


if __name__ == "__main__":
    save_figure(figure(), PICTURE, dpi=200)
