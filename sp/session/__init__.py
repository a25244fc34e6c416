"""From a prompt to an answer: options, models opened, the one path of a request, and what turns remember.

What is named here is imported when it is first used: the command line needs the options alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sp.session.conversation import Conversation
    from sp.session.decision import Decision, break_even, decide
    from sp.session.loaded import Loaded, embedded, load, synthetic
    from sp.session.options import ConversationOptions, RunOptions
    from sp.session.pipeline import Pipeline
    from sp.session.result import Answer, Recalled, RunResult, Scored, TurnResult, Usage, turn_row
    from sp.session.store import Conversations
    from sp.session.stream import AsyncStream, Stream

__all__ = [
    "Answer", "AsyncStream", "Conversation", "ConversationOptions", "Conversations", "Decision", "Loaded", "Pipeline",
    "Recalled", "RunOptions", "RunResult", "Scored", "Stream", "TurnResult", "Usage", "break_even", "decide",
    "embedded", "load", "synthetic", "turn_row",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in ("options", "loaded", "result", "decision", "pipeline", "conversation", "store", "stream"):
            if (module := import_module(f"{__name__}.{home}")).__dict__.get(name) is not None:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
