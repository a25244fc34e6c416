"""DraftOnCards: a draft whose target cards share, whole on each of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from sp.models import Draft, load_draft
from sp.models.shards.shared_model import SharedModel


@dataclass(frozen=True, repr=False)
class DraftOnCards(Draft):
    """The draft of the first card, and those of the others.

    Attributes
    ----------
    others : tuple of Draft
        In the order of the cards.
    """

    others: tuple[Draft, ...] = ()


def draft_on_cards(path: str | Path, model: SharedModel) -> DraftOnCards:
    """`load_draft` for every card's share of the target."""
    drafts = []
    for part in model.shards.models:
        with model.shards.group.at(part.share.rank):
            drafts.append(load_draft(path, part))
    first = {field.name: getattr(drafts[0], field.name) for field in fields(Draft)}
    return DraftOnCards(**first, others=tuple(drafts[1:]))


def draft_of(draft: Draft | None, rank: int) -> Draft | None:
    """That of one card; none where there is none."""
    if not isinstance(draft, DraftOnCards):
        return draft
    return (draft, *draft.others)[rank]
