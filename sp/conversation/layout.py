"""The layout of a turn: which of the ways to bring something back is taken, and what the report says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sp.arrays import Ints
from sp.conversation.before import over
from sp.conversation.choose import Run
from sp.conversation.options import Recall
from sp.conversation.plan import Plan, Planner
from sp.conversation.rendering import message_starts
from sp.conversation.slots import Slots
from sp.conversation.turn import Recalled, Way
from sp.pipeline import Loaded, RunOptions
from sp.prompt import TokenisedPrompt

GLUE = "\n", "\n\n"
"""What stands between the spans of an excerpt, and behind it."""


def lay_out(
    planner: Planner,
    prompt: TokenisedPrompt,
    runs: Sequence[Run],
    recall: Recall,
    target: Loaded,
    options: RunOptions,
    cost: Callable[[Plan], int],
) -> Plan:
    """The cheapest way to have what is kept and recalled before the target, in positions that there are.

    Parameters
    ----------
    planner : Planner
    prompt : TokenisedPrompt
    runs : sequence of Run
        To be brought back; where there is no room for that, they are not.
    recall : {"auto", "append", "rewind", "off"}
    target : Loaded
    options : RunOptions
    cost : callable
        Tokens that the target would read for a plan.

    Raises
    ------
    PromptError
        The transcript does not fit the window even without them.
    """
    context, new = target.model.config.context, options.max_new_tokens

    def fits(plan: Plan) -> bool:
        return plan.slots.end + new <= context

    plans = list[Plan]()
    if runs and recall in ("auto", "append"):
        starts = message_starts(prompt)
        later = starts[(starts >= planner.decided) & (starts < len(prompt))]
        place = int(later[0]) if len(later) else planner.decided  # what was told before new text stands before it
        gap, end = (target.tokenizer.encode(text, begins=False).ids for text in GLUE)
        plans.append(planner.appended(runs, place, gap, end))
    if runs and recall in ("auto", "rewind"):
        plans.append(planner.rewound(runs))
    if fit := [plan for plan in plans if fits(plan)]:
        return min(fit, key=cost)
    plain = planner.appended()
    if not fits(plain) and planner.old.offset:
        plain = planner.rewound()  # without excerpts there may be room
    if not fits(plain):
        raise over(target, plain.slots.end, options)
    return plain


def reopened(old: Slots, starts: Ints, decided: int, parted: bool) -> int | None:
    """Where the message begins inside which new text does and that is read again as a whole; None if none is.

    The question, where it is asked once more: what comes back for it stands before it. And one that was changed, if
    something came back before it: that goes with it.

    Parameters
    ----------
    old : Slots
    starts : int64 (messages,)
        Where messages begin, tokens.
    decided : int
        Tokens that new text has in common with the old.
    parted : bool
        Whether the old went on from there.

    Examples
    --------
    >>> reopened(Slots.of(np.arange(9), np.arange(9)), np.array([0, 4, 7]), 8, False)
    7
    >>> reopened(Slots.of(np.arange(9), np.arange(9)), np.array([0, 4, 7]), 5, True)
    """
    at = int(np.searchsorted(starts, decided)) - 1
    if at < 0:
        return None
    begin = int(starts[at])
    return begin if at == len(starts) - 1 or (parted and begin in old.place[old.excerpts]) else None


def told(run: Run, prompt: TokenisedPrompt, threshold: float, way: Way) -> Recalled:
    """What the report says of a span that was brought back."""
    first, last = int(prompt.bytes[run.start, 0]), int(prompt.bytes[run.end - 1, 1])
    text = prompt.prompt.text.encode()[first:last].decode(errors="replace")
    return Recalled(text, run.start, run.end, run.score, threshold, way)
