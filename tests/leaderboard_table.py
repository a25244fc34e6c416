"""The leaderboard, and the tables of scorers in docs and README, from the records; run it to print them anew."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from models_page import table

from sp.studies.board.entries import Board, BoardEntry, read_board

ROOT = Path(__file__).parents[1]
RECORDS = [ROOT / "results" / gpu / "instrument" / "evals" for gpu in ("nvidia-h200", "nvidia-h100-80gb-hbm3")]
TASKS = "nolima", "updates", "code", "multi_session", "json", "fact"
SCORERS = {
    "full": "full prefill", "probe": "`probe`, task left out", "lines": "`lines`, task left out", "tail": "`tail`",
    "tail queries=24": "`tail[queries=24]`", "snapkv": "`snapkv`", "anchored": "`anchored`",
    "answer_attention": "`answer_attention` (oracle)", "oracle": "`oracle`", "random": "`random` (control)",
    "lexical": "`lexical` (control)", "bm25": "`bm25` (control)",
}  # fmt: skip


@cache
def board() -> Board:
    """All records of the embedded pair."""
    return read_board(RECORDS)


def entries(tokens: int) -> dict[tuple[str, str], BoardEntry]:
    """By scorer, without its weights, and task, at keep ratio 0.05."""
    found = [entry for entry in board().entries if entry.tokens == tokens and entry.keep in (None, 0.05)]
    return {("full" if one.kind == "full" else one.scorer.split(" weights=")[0], one.task): one for one in found}


def lines(tokens: int = 8192) -> list[str]:
    """A row a scorer, a column a task, right answers in per cent."""
    found = entries(tokens)
    rows = [
        [shown, *(f"{100 * one.accuracy:.0f}" if (one := found.get((name, task))) and one.accuracy is not None else ""
         for task in TASKS)]
        for name, shown in SCORERS.items()
    ]  # fmt: skip
    return table(["scorer", *(f"`{task}`" for task in TASKS)], rows)


def lengths(task: str = "nolima facts=1") -> list[str]:
    """A row a scorer, a column a length: one fact, asked for in other words."""
    found = {tokens: entries(tokens) for tokens in (8192, 32768, 131072)}
    rows = [
        [shown, *(f"{100 * one.accuracy:.0f}" if (one := of.get((name, task))) and one.accuracy is not None else ""
         for of in found.values())]
        for name, shown in SCORERS.items()
    ]  # fmt: skip
    return table(["scorer", *(f"{tokens // 1024}K" for tokens in found)], [row for row in rows if all(row)])


if __name__ == "__main__":
    print(*lines(), "", *lengths(), sep="\n")
