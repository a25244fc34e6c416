#!/usr/bin/env bash
# LiteLLM's message compression: each new question changes messages of earlier requests, so prefix caches miss.
#
# Version: litellm 1.110.2, `litellm.compress` with BM25 only (no embedding model), a target of a third of the tokens.
# Behaviour: messages are scored against the user's last message, and those that exceed the target are replaced by a
#   short stub with a key for its retrieval tool. No state is kept between calls, and scores depend on the newest
#   question: a tool's result that is complete for one question is a stub for the next, and vice versa. A server can
#   reuse its cache only up to the first changed message, here the second log.
# Output seen: eight logs read by a tool, then eight questions, one about each. In the third request 4 of 21 earlier
#   messages were unchanged, in the sixth and seventh 4 of 27 and 29; in the best 17 of 19. The same request is
#   compressed identically twice: it is the new question that changes the selection.
# Why it matters: compression before a server with a prefix cache (llama-server's slots, vLLM, providers that bill
#   cached tokens at a tenth) saves tokens and loses the cache on every turn. Compare the tokens that are billed or
#   read, not those that are sent; or decide once per message, and restore what a question needs after the newest
#   question.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" - <<'PYTHON'
import json

import litellm

TOPICS = ["harbour", "orchard", "violin", "furnace", "lantern", "sundial", "quarry", "meadow"]
MODEL = "gpt-4o"  # whose tokens are counted; nothing is asked of it


def log(number):
    topic = TOPICS[number]
    return "\n".join(
        f"The {topic} log, entry {n}: the {topic} was checked and stood as before, reading {number}{n}." for n in range(60)
    )


def conversation(questions):
    messages = [{"role": "user", "content": "Read the logs, one by one."}]
    for number in range(len(TOPICS)):
        call = {"name": "read", "arguments": json.dumps({"number": number})}
        calls = [{"id": f"c{number}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": f"I read log {number}.", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": log(number)})
    messages.append({"role": "assistant", "content": "I have read them."})
    for question in questions:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": "As the log says."}]
    return messages[:-1]


def compressed(questions):
    messages = conversation(questions)
    target = litellm.token_counter(model=MODEL, messages=messages) // 3
    found = litellm.compress(messages, MODEL, compression_trigger=1, compression_target=target)
    assert found["compressed_tokens"] < found["original_tokens"] / 2, "nothing was compressed"
    return found["messages"]


asked = [f"What did the {topic} read last?" for topic in TOPICS]
before, shares = compressed(asked[:1]), []
assert compressed(asked[:1]) == before, "the same request is now compressed in two ways"
for count in range(2, len(asked) + 1):
    now = compressed(asked[:count])
    alike = next((i for i, (old, new) in enumerate(zip(before, now)) if old != new), len(before))
    whole = [i for i, one in enumerate(now) if one["role"] == "tool" and len(one["content"]) > 2000]
    print(f"question {count}: {alike} of {len(before)} earlier messages as they were sent before; whole logs at {whole}")
    shares.append(alike / len(before))
    before = now
assert sum(share < 0.5 for share in shares) >= 4, "earlier messages are now kept as they were sent"
PYTHON
