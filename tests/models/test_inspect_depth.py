"""A drafter counts as far as the default scorer reads it, in memory, plan and words."""

from __future__ import annotations

import io

from rich.console import Console

from sp.planning.plan import make_plan
from sp.planning.subject import shape_subject, whole
from sp.planning.tables import render_plan
from sp.scoring.calibration.measure import default_depth


def test_a_drafter_counts_as_far_as_it_is_read() -> None:
    heavy = shape_subject("llama-3.1-8b", "q4_k_m")
    all_of_it, first = (shape_subject("qwen3-0.6b", "bf16", depth=depth) for depth in (whole, default_depth))
    assert all_of_it.scoring_model is not None
    assert first.scoring_model is not None
    assert (all_of_it.scoring_model.depth_label, first.scoring_model.depth_label) == ("", "18 of 28 layers")
    assert all_of_it.scoring_model.weights == all_of_it.weights == first.weights
    head = 2 * all_of_it.scoring_model.config.vocab * all_of_it.scoring_model.config.hidden
    layers = all_of_it.scoring_model.weights - head
    assert first.scoring_model.weights < 0.65 * layers + head, "the head is not loaded"
    plans = [make_plan(heavy, one, 24, 131072) for one in (all_of_it, first)]
    longer, shorter = (list(plan.memory()) for plan in plans)
    assert all(a["together"] > b["together"] for a, b in zip(longer, shorter, strict=True))
    assert [plan.as_dict()["drafter"]["layers_read"] for plan in plans] == [28, 18]
    console = Console(width=120, file=io.StringIO())
    console.print(render_plan(plans[1].as_dict()))
    assert "18 of 28 layers" in console.file.getvalue()  # type: ignore[attr-defined]
    small = make_plan(first, None, None, 8192).as_dict()
    assert small["as_drafter"].endswith("; 18 of 28 layers are read")
    assert small["memory"][-1]["scoring"] < make_plan(all_of_it, None, None, 8192).as_dict()["memory"][-1]["scoring"]
