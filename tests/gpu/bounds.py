"""One table of the bounds on errors that outliers, or the size of a model, could hide; and the worst that a run found.

A run prints every entry with the worst it measured. Bounds belong near that: within a factor of three or so.
"""

from __future__ import annotations

BOUNDS = {
    # Squared error over squared size of the quiet part of a product whose inputs have outliers of 50 in four columns.
    # One token goes as 16-bit integers, scaled by the largest of 256, for formats whose stages have so many.
    "quiet inputs, one token, in integers": 1.5e-6,
    "quiet inputs, one token": 1e-12,
    "quiet inputs, few tokens": 1e-6,
    "quiet inputs, prefill": 1.5e-5,  # weights are rounded to bf16
    "quiet inputs, F16 weights": 1e-5,  # these too, in every kernel
    "quiet inputs, normed": 2e-5,  # inputs are rounded to bf16, by the Hopper kernel for few tokens to f16
    "loud inputs": 1.5e-5,
    "loud inputs, normed": 2e-5,
    # Of a residual stream with outliers of 3000 in three columns.
    "quiet columns of x + h W": 1e-6,
    "quiet columns of x + h W, rounded weights": 1.2e-5,
    "loud columns of x + h W": 2e-12,
    "quiet columns after a feed-forward": 6e-5,
    "loud columns after a feed-forward": 1e-8,
    "quiet columns of a begun norm": 1.5e-7,
    "loud columns of a begun norm": 2e-7,
    "quiet columns of a layer": 4e-7,
    "loud columns of a layer": 2e-13,
    # Root mean square of the error of logits over that of the logits, of layers of the 27B model against float32.
    "27B sm_90a f16": 0.11,
    "27B sm_90a q4_0": 0.28,
    "27B portable f16": 0.24,
    "27B portable q4_0": 0.33,
    "27B sm_90a f16, one by one": 0.11,
    "27B sm_90a q4_0, one by one": 0.28,
    "27B portable f16, one by one": 0.11,
    "27B portable q4_0, one by one": 0.28,
    "27B sm_90a f16, as a tree": 0.11,
    "27B sm_90a q4_0, as a tree": 0.28,
    "27B portable f16, as a tree": 0.24,
    "27B portable q4_0, as a tree": 0.33,
}
_worst: dict[str, float] = {}


def within(name: str, error: float) -> None:
    """Assert that an error is below its bound, and keep the worst of each for the end of the run."""
    _worst[name] = max(error, _worst.get(name, 0.0))
    assert error < BOUNDS[name], f"{name}: {error:.3g}, the bound is {BOUNDS[name]:.3g}"


def measured() -> list[str]:
    """The worst of this run beside the bounds, a line each."""
    return [f"{name}: worst {error:.3g}, bound {BOUNDS[name]:.3g}" for name, error in sorted(_worst.items())]
