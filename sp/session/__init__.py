"""From a prompt to an answer: options, models opened, the one path of a request, and what turns remember."""

from sp.session.conversation import Conversation
from sp.session.decide import Decision, break_even, decide
from sp.session.load import Loaded, embedded, load, synthetic
from sp.session.options import ConversationOptions, RunOptions
from sp.session.pipeline import Pipeline
from sp.session.result import Answer, Recalled, RunResult, Scored, TurnResult, Usage, turn_row
from sp.session.store import Conversations

__all__ = [
    "Answer",
    "Conversation",
    "ConversationOptions",
    "Conversations",
    "Decision",
    "Loaded",
    "Pipeline",
    "Recalled",
    "RunOptions",
    "RunResult",
    "Scored",
    "TurnResult",
    "Usage",
    "break_even",
    "decide",
    "embedded",
    "load",
    "synthetic",
    "turn_row",
]
