"""How many frames the grammars give: ``python frames_count.py [DRAWN]``; one line a rule, of so many drawn frames.

Different ones, those left out as echoes of held-out frames, and for comparison the frames of the fixed lists.
"""

from __future__ import annotations

import random
import sys
from importlib import import_module
from typing import Any

from phrases import kin, moving, ordered, paths, scenes
from phrases.echo import echoes

RULES = {
    "json": [
        (paths.GRAMMAR, "ask", "asks"),
        (paths.GRAMMAR, "top", "asks_top"),
        (paths.RECORD, "owner", "asks_record"),
    ],
    "multi_session": [(kin.GRAMMAR, rule, field) for field, rule in kin.FIELDS.items() if isinstance(rule, str)]
    + [(kin.GRAMMAR, rule, field) for field in ("facts", "asked") for rule in kin.FIELDS[field].values()],
    "babi": [(moving.GRAMMAR, rule, field) for field, rule in moving.FIELDS.items()],
    "mrcr": [(ordered.GRAMMAR, rule, field) for field, rule in ordered.FIELDS.items()],
}


def fixed(values: Any) -> int:
    """Different frames of a field."""
    return len({one for frames in values.values() for one in frames}) if isinstance(values, dict) else len(set(values))


def line(name: str, grammar: Any, rule: str, listed: str, many: int) -> str:
    """What is told of a rule."""
    rng = random.Random(0)
    drawn = [grammar.draw(rule, rng) for _ in range(many)]
    kept = [one for one in drawn if not echoes(one)]
    share = 100 * (many - len(kept)) / many
    return f"| {name} | {rule} | {grammar.forms(rule):.2g} | {len(set(kept))} | {share:.1f} | {listed} |"


def main(many: int) -> None:
    """Print a table."""
    print(f"| told in | rule | ways to put it together | different of {many} | echoes (%) | in the fixed list |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, rules in RULES.items():
        phrases = import_module(f"phrases.{name}").TRAIN
        for grammar, rule, field in rules:
            print(line(name, grammar, rule, str(fixed(getattr(phrases, field))), many))
    for relation in scenes.RELATIONS:
        for rule in dict.fromkeys((relation.told, *(rule for rule, _ in relation.asks))):
            print(line("scenes", scenes.GRAMMAR, rule, "", many))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
