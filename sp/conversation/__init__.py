"""Conversations: what is kept from turn to turn, and what comes back of what was left out."""

from sp.conversation.conversation import Conversation
from sp.conversation.options import ConversationOptions
from sp.conversation.rows import turn_row
from sp.conversation.store import Conversations
from sp.conversation.turn import Recalled, TurnResult, Usage

__all__ = ["Conversation", "ConversationOptions", "Conversations", "Recalled", "TurnResult", "Usage", "turn_row"]
