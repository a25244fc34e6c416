"""Speculative prefill: which tokens of a long prompt must a heavy model really read?

Importing this package touches no device and loads no model code; the public names below are imported when
they are first used.

Examples
--------
>>> import sp
>>> pipeline = sp.load()  # the embedded pair
>>> prompt = sp.Prompt.from_document(
...     "The grass is green. The special magic number for quiet-lantern is 8301947. The sky is blue.",
...     "What is the special magic number for quiet-lantern?",
...     pipeline.target.template,
... )
>>> pipeline.run(prompt).decision.activated
False
>>> pipeline.run(prompt, sp.RunOptions(keep_ratio=0.8, scorer="lexical", compress="always")).decision.activated
True
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sp.keywords import names_keywords

if TYPE_CHECKING:
    from sp.evals import Example as Example
    from sp.evals import Task as Task
    from sp.evals import register_task as register_task
    from sp.front.shorten import Compressor as Compressor
    from sp.front.shorten import compress as compress
    from sp.plugins import load_plugin as load_plugin
    from sp.prompt import Prompt as Prompt
    from sp.scoring import Importance as Importance
    from sp.scoring import ModelFreeScorer as ModelFreeScorer
    from sp.scoring import Scorer as Scorer
    from sp.scoring import ScoreRequest as ScoreRequest
    from sp.scoring import register_scorer as register_scorer
    from sp.scoring.attention.key_values import AttentionInputs as AttentionInputs
    from sp.scoring.attention.key_values import KeyValueScorer as KeyValueScorer
    from sp.selection import Selection as Selection
    from sp.selection import SelectionRequest as SelectionRequest
    from sp.selection import Selector as Selector
    from sp.selection import register_selector as register_selector
    from sp.session import Conversation as Conversation
    from sp.session import ConversationOptions as ConversationOptions
    from sp.session import Conversations as Conversations
    from sp.session import Pipeline as Pipeline
    from sp.session import RunOptions as RunOptions

__version__ = "0.6.0"

HOMES = {
    "AttentionInputs": "sp.scoring.attention.key_values",
    "Compressor": "sp.front.shorten",
    "Conversation": "sp.session",
    "ConversationOptions": "sp.session",
    "Conversations": "sp.session",
    "Example": "sp.evals",
    "Importance": "sp.scoring",
    "KeyValueScorer": "sp.scoring.attention.key_values",
    "ModelFreeScorer": "sp.scoring",
    "Pipeline": "sp.session",
    "Prompt": "sp.prompt",
    "RunOptions": "sp.session",
    "ScoreRequest": "sp.scoring",
    "Scorer": "sp.scoring",
    "Selection": "sp.selection",
    "SelectionRequest": "sp.selection",
    "Selector": "sp.selection",
    "Task": "sp.evals",
    "compress": "sp.front.shorten",
    "load_plugin": "sp.plugins",
    "register_scorer": "sp.scoring",
    "register_selector": "sp.selection",
    "register_task": "sp.evals",
}  # public names and where they are imported from when they are first used

__all__ = ["__version__", "load", *HOMES]


@names_keywords
def load(
    target: str | Path | None = None,
    drafter: str | Path | None = None,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    vram: str | int | None = None,
    precision: str = "bf16",
    drafter_precision: str = "bf16",
) -> Pipeline:
    """Open a target and a drafter; the embedded pair if both are left out.

    Parameters
    ----------
    target, drafter : path, optional
        GGUF files, or names of known models that `sp get` has fetched. A target without a drafter has the best of
        these.
    device : {"auto", "cpu", "cuda"}
        Where both run; `auto` is the GPU where there is one.
    vram : str or int, optional
        GPU memory for both models, caches and work: a size such as ``"24g"``, or bytes; all there is if left out.
    precision, drafter_precision : {"bf16", "int8", "fp8", "auto"}
        What target and drafter multiply where they read a prompt.

    Raises
    ------
    SpError
        A file is missing, damaged, or no model `sp` can run; with ``cuda`` also without a usable device; `vram` is no
        size, or the models run on the CPU; `precision` is none of these, or no kernel of the device makes it.

    Examples
    --------
    >>> load(device="cpu")
    Pipeline(target='target.gguf', drafter='drafter.gguf', device='cpu')
    >>> load(vram="24 apples")
    Traceback (most recent call last):
    sp.errors.ConfigError: vram takes a size with its unit, such as 24g or 900m, not '24 apples'
    """
    from sp.session import Pipeline
    from sp.session.device_memory import parse_bytes

    budget = None if vram is None else parse_bytes(vram, "vram")
    return Pipeline.open(
        target, drafter, device=device, vram=budget, precision=precision, drafter_precision=drafter_precision
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module 'sp' has no attribute {name!r}")
