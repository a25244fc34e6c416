#!/usr/bin/env bash
# LiteLLM's message compression: each new question rewrites what earlier requests had sent, so no prefix cache holds.
#
# Version: litellm 1.110.2, `litellm.compress` with BM25 alone (no embedding model), a target of a third of the tokens.
# Behaviour: messages are scored against the last message of the user, and those that do not fit the target are replaced
#   by a short stub with a key for its retrieval tool. Nothing is remembered from call to call, and scores depend on the
#   newest question: a tool's result that was sent whole for one question is a stub for the next, and the reverse. What
#   a server has cached of the conversation is of use up to the first message that changed, here the second log.
# Output seen: eight logs read by a tool and then eight questions, one about each. The third request had 4 of 21 earlier
#   messages as before, the sixth and the seventh 4 of 27 and 29; the best had 17 of 19. Asked twice, one request is
#   compressed the same both times: it is the new question that moves the choice.
# Why it matters: whoever puts compression before a server with a prefix cache (llama-server's slots, vLLM, providers
#   that bill cached tokens at a tenth) saves tokens and loses the cache each turn. Compare what is billed or read, not
#   what is sent; or decide once for each message, and bring back behind the newest question what it needs.
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
