"""What is told of acceptance: tokens a pass and its interval."""

from __future__ import annotations

import numpy as np


def interval(tokens: list[int], passes: list[int], seed: int = 0, draws: int = 2000) -> tuple[float, float]:
    """Bootstrap 95 % interval, over prompts, of all tokens divided by all passes."""
    t, p = np.array(tokens), np.array(passes)
    at = np.random.default_rng(seed).integers(len(t), size=(draws, len(t)))
    low, high = np.quantile(t[at].sum(1) / p[at].sum(1), (0.025, 0.975))
    return round(float(low), 3), round(float(high), 3)


def follow(right: np.ndarray) -> int:
    """Passes for one answer; ``right`` (tokens, depth): which guesses stand after each of its tokens but the last.

    Examples
    --------
    >>> follow(np.array([[True, True], [True, False], [False, False]]))
    1
    >>> follow(np.array([[True, False], [True, True], [False, False]]))
    2
    """
    at = passes = 0
    while at < len(right):
        at += int(right[at].cumprod().sum()) + 1
        passes += 1
    return passes


def kept(record: dict) -> str:
    """How much of the haystack the target read."""
    return "all" if record["keep"] == 1.0 else f"{record['keep']:.0%} of the haystack + needle"


def acceptance_table(records: list[dict]) -> str:
    """Markdown table of `draft_accept`'s records."""
    names = (
        "decode|task|prompt tokens|kept|n|tokens an answer|tokens a pass|interval|answers in one pass|equal to greedy"
    )
    out = ["| " + " | ".join(names.split("|")) + " |", "|---" * 10 + "|"]
    for r in records:
        low, high = r["interval"]
        out.append(
            f"| {r['decode']} | {r['task']} | {r['length']} | {kept(r)} | {r['n']} | {r['tokens'] / r['n']:.1f} "
            f"| {r['accepted']:.2f} | {low:.2f} to {high:.2f} | {r['one_pass']} | {r['equal']} |"
        )
    return "\n".join(out)


def depth_table(records: list[dict]) -> str:
    """Markdown table of `draft_evaluate`'s records: how often the guess at each depth is right, from any token on."""
    depths = list(records[0]["depth_accuracy"])
    out = [
        "| decode | task | prompt tokens | kept | n | tokens an answer | tokens a pass | interval | "
        + " | ".join(depths)
        + " |"
    ]
    out.append("|---" * (8 + len(depths)) + "|")
    for r in records:
        low, high = r["interval"]
        cells = " | ".join("" if (a := r["depth_accuracy"][d]) is None else f"{100 * a:.0f} %" for d in depths)
        out.append(
            f"| dflash | {r['task']} | {r['length']} | {kept(r)} | {r['right']} of {r['n']} "
            f"| {r['tokens'] / r['right']:.1f} | {r['accepted']:.2f} | {low:.2f} to {high:.2f} | {cells} |"
        )
    return "\n".join(out)


def parts_table(parts: dict[str, list[dict]]) -> str:
    """Markdown table of tokens a pass after each part of the training, from `draft_evaluate`'s records of each."""
    out = ["| decode | task | prompt tokens | kept | " + " | ".join(parts) + " |", "|---" * (4 + len(parts)) + "|"]
    for same in zip(*parts.values(), strict=True):
        r = same[0]
        cells = " | ".join(f"{x['accepted']:.2f} ({x['interval'][0]:.2f} to {x['interval'][1]:.2f})" for x in same)
        out.append(f"| dflash | {r['task']} | {r['length']} | {kept(r)} | {cells} |")
    return "\n".join(out)
