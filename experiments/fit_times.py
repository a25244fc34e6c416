"""Fit what `sp plan` predicts times by, and print how far off the rows held out are.

Rates are fitted to records of an H200, what several cards wait for to records of two of them and of two H100.

    python experiments/fit_times.py            # prints
    python experiments/fit_times.py --write    # and writes sp/models/timing/fitted.json

Which rows may be fitted to is fixed in sp/bench/predicted/rows.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

from sp.bench.predicted.fit import fit, told
from sp.bench.predicted.links import PAIRED, marked
from sp.bench.predicted.rows import CARD
from sp.models.timing.fitted import FILE
from sp.trace import write_atomic

RESULTS = Path(__file__).parents[1] / "results"
RECORDS, PAIRS = RESULTS / "nvidia-h200", RESULTS / "nvidia-h100-80gb-hbm3"


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table that predictions are made by")
    write = parser.parse_args().write
    known = fit(RECORDS, PAIRS)
    for card, folder in ((CARD, RECORDS), (PAIRED, PAIRS)):
        found = marked(folder, card)
        for row in found:
            mark = "fit" if row.fit else "held out"
            print(f"{row.bench:<8} {mark:<9} {row.error(known):+7.1%}  {1e3 * row.seconds:9.1f} ms  {row.name}")
        held = [abs(row.error(known)) for row in found if not row.fit]
        print(f"held out: {len(held)} rows, median error {median(held):.1%}, {sum(e <= 0.1 for e in held)} within 10 %")
    if write:
        write_atomic(FILE, (json.dumps(told(known), indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
