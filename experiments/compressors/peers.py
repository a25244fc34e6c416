"""Transcripts through other compressors, in an environment of their own: python peers.py TRANSCRIPTS -o FILE

LiteLLM chooses whole messages by BM25 and cuts some, within a number of tokens; headroom is asked for a share, of user
messages too, with nothing protected as recent. Its model for prose comes from a hub; where that cannot be reached it
works without, as its own code decides.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

MODEL = "gpt-4o"


def by_litellm(messages: list[dict[str, Any]], share: float) -> list[dict[str, Any]]:
    from litellm import compress, token_counter

    tokens = token_counter(model=MODEL, messages=messages)
    return compress(messages, MODEL, compression_trigger=1, compression_target=int(share * tokens))["messages"]


def by_headroom(messages: list[dict[str, Any]], share: float) -> list[dict[str, Any]]:
    from headroom import compress

    return compress(messages, model=MODEL, target_ratio=share, compress_user_messages=True, protect_recent=0).messages


PEERS: dict[str, Callable[[list[dict[str, Any]], float], list[dict[str, Any]]]] = {
    "litellm": by_litellm,
    "headroom-ai": by_headroom,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transcripts", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--peers", nargs="+", default=list(PEERS))
    parser.add_argument("--shares", type=float, nargs="+", default=[0.2, 0.1])
    given = parser.parse_args()
    with given.out.open("a") as file:
        for line in given.transcripts.open():
            asked = json.loads(line)
            for name in given.peers:
                for share in given.shares:
                    start = time.perf_counter()
                    first = PEERS[name](json.loads(line)["messages"], share)
                    seconds = time.perf_counter() - start
                    more = [{"role": "assistant", "content": "See above."}, {"role": "user", "content": asked["later"]}]
                    second = PEERS[name]([*json.loads(line)["messages"], *more], share)
                    row = {"id": asked["id"], "who": f"{name} {version(name)}", "share": share, "seconds": seconds}
                    file.write(json.dumps(row | {"messages": first, "same": second[: len(first)] == first}) + "\n")


if __name__ == "__main__":
    main()
