"""Tokens that a server reads anew over the turns of a conversation, through a front with compression off and on.

    sp front --upstream http://127.0.0.1:8091 --threshold 256 --scorer bm25 --port 8100 &
    python experiments/front_turns.py http://127.0.0.1:8100 --turns 14

Each turn is a user's message of 34 lines and a question; `front_agent.py` has turns of an agent. The server counts the
tokens of each prompt and how many it had cached; it must run one conversation at a time.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import httpx

NOUNS = ["kettle", "ladder", "harbour", "engine", "violin", "garden", "bridge", "candle", "orchard", "tunnel"]


def lines(seed: int, count: int) -> str:
    draw = random.Random(seed)
    return "\n".join(
        f"The {draw.choice(NOUNS)} of room {draw.randrange(900)} stood by the {draw.choice(NOUNS)}."
        for _ in range(count)
    )


def message(number: int) -> dict[str, Any]:
    """Return the user's message of a turn."""
    question = f"Note {number}. Which room has the {NOUNS[number % len(NOUNS)]}?"
    return {"role": "user", "content": f"{lines(number, 34)}\n\n{question}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("front")
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    for name, headers in (("off", {"x-sp-keep-ratio": "off"}), ("on", {})):
        # Another first message for each way, so that neither finds the other's cache.
        messages: list[dict[str, Any]] = [{"role": "system", "content": f"{name}: be brief."}]
        total, cached = 0, 0
        for number in range(options.turns):
            messages.append(message(number))
            body = {"messages": messages, "max_tokens": 8, "temperature": 0, "cache_prompt": True}
            url = f"{options.front}/v1/chat/completions"
            reply = httpx.post(url, json=body, headers=headers, timeout=None, trust_env=False)
            reply.raise_for_status()
            usage = reply.json()["usage"]
            total += usage["prompt_tokens"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
            messages.append({"role": "assistant", "content": "I see."})
        print(f"{name}: {options.turns} turns, {usage['prompt_tokens']:,} tokens in the last prompt, "
              f"{cached / total:.1%} of all cached, {total - cached:,} read anew", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
