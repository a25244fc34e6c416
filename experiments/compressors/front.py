"""Transcripts through the front's own code: python front.py TRANSCRIPTS -o FILE"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from sp.front.history import History
from sp.front.rules import Rules
from sp.front.shorten import Compressor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("transcripts", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--scorer", default="auto")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.2, 0.1])
    given = parser.parse_args()
    compressor = Compressor.open("smollm2-135m", scorer=given.scorer)
    with given.out.open("a") as file:
        for line in given.transcripts.open():
            asked = json.loads(line)
            for share in given.shares:
                history, rules = History(compressor), Rules(share, 0)
                start = time.perf_counter()
                first = history.shorten("chat", {"messages": asked["messages"]}, rules).body["messages"]
                seconds = time.perf_counter() - start
                more = [{"role": "assistant", "content": "See above."}, {"role": "user", "content": asked["later"]}]
                second = history.shorten("chat", {"messages": [*asked["messages"], *more]}, rules).body["messages"]
                row = {"id": asked["id"], "who": f"sp front, {given.scorer}", "share": share, "seconds": seconds}
                file.write(json.dumps(row | {"messages": first, "same": second[: len(first)] == first}) + "\n")


if __name__ == "__main__":
    main()
