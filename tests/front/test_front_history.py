"""What is decided of a transcript stays as it was written, fits where it must, and comes back where it matters."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.errors import PromptError
from sp.front.history import CLOSING, OPENING, History
from sp.front.rules import Rules
from sp.front.shorten import Compressor, TranscriptText, compress
from sp.front.store import DecisionStore

RULES = Rules(keep_ratio=0.2, threshold=256)
ASK = "What is the special number for ladder?"
NOUNS = ["kettle", "ladder", "harbour", "engine", "violin", "garden", "bridge", "candle", "orchard", "tunnel"]


def story(seed: int, lines: int = 60, fact: str = "", at: float = 0.5) -> str:
    """Plain sentences, with a fact in their midst."""
    rng = random.Random(seed)
    made = [
        f"The {rng.choice(NOUNS)} of room {rng.randrange(900)} stood by the {rng.choice(NOUNS)}." for _ in range(lines)
    ]
    if fact:
        made.insert(int(lines * at), fact)
    return "\n".join(made)


def rows(seed: int, count: int = 40) -> str:
    """What a tool answers: JSON."""
    rng = random.Random(seed)
    return json.dumps([{"id": n, "name": rng.choice(NOUNS), "size": rng.randrange(9999)} for n in range(count)])


def agent(turns: int) -> list[dict]:
    """A task, then calls and what they gave."""
    found = [
        {"role": "system", "content": "You fix things."},
        {"role": "user", "content": "Find the size of the red violin."},
    ]
    for turn in range(turns):
        call = {
            "id": f"c{turn}",
            "type": "function",
            "function": {"name": "look", "arguments": json.dumps({"n": turn})},
        }
        found.append({"role": "assistant", "content": f"I look at part {turn}.", "tool_calls": [call]})
        text = rows(turn) if turn % 2 else story(turn, fact=f"The red violin {turn} has size {7000 + turn}.")
        found.append({"role": "tool", "tool_call_id": f"c{turn}", "content": text})
    return found


def test_a_document_before_its_question(words: Compressor) -> None:
    history = History(words)
    text = story(1, 120, "The password of the archive is vermilion.")
    body = {"messages": [{"role": "user", "content": f"{text}\n\nWhat is the password of the archive?"}], "n": 1}
    done = history.shorten("chat", body, RULES)
    sent = done.body["messages"][0]["content"]
    assert sent.endswith("\n\nWhat is the password of the archive?")
    assert "vermilion" in sent
    assert re.search(r"\[\.\.\. [\d,]+ lines \.\.\.\]", sent)
    assert done.shortened == done.decided == 1
    assert done.tokens * 0.15 < done.sent < done.tokens * 0.35
    assert done.body["n"] == 1
    assert body["messages"][0]["content"].startswith(text)


def test_every_turn_of_an_agent_writes_what_came_before_the_same(words: Compressor) -> None:
    history, before, messages = History(words), [], agent(20)
    for turn in range(1, 21):
        done = history.shorten("chat", {"messages": messages[: 2 + 2 * turn]}, RULES)
        sent = done.body["messages"]
        # all but the newest, which was sent whole until an assistant spoke behind it
        assert json.dumps(sent[: max(len(before) - 1, 0)]) == json.dumps(before[:-1])
        assert sent[-1] == messages[1 + 2 * turn]
        assert [one.get("tool_calls") for one in sent] == [one.get("tool_calls") for one in messages[: 2 + 2 * turn]]
        assert [one.get("tool_call_id") for one in sent] == [
            one.get("tool_call_id") for one in messages[: 2 + 2 * turn]
        ]
        before = sent
    assert done.sent < done.tokens / 2
    for one in before[3:-1:4]:
        json.loads(one["content"]) if one["content"].startswith("[{") else None


def test_the_next_question_brings_back_what_was_left_out(words: Compressor) -> None:
    history = History(words)
    facts = ["The password of the archive is vermilion.", "Berta keeps the spare key below the sundial."]
    text = "\n".join([story(2, 60, facts[0]), story(3, 60, facts[1])])
    first = f"{text}\n\nWhat is the password of the archive?"
    done = history.shorten("chat", {"messages": [{"role": "user", "content": first}]}, RULES)
    shown = done.body["messages"][0]["content"]
    assert facts[1] not in shown
    messages = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": "Vermilion."},
        {"role": "user", "content": "Where does Berta keep the spare key?"},
    ]
    again = history.shorten("chat", {"messages": messages}, RULES)
    sent = again.body["messages"]
    assert sent[0]["content"] == shown
    assert sent[2]["content"].startswith(OPENING)
    assert sent[2]["content"].endswith(f"{CLOSING}Where does Berta keep the spare key?")
    assert facts[1] in sent[2]["content"]
    assert again.recalled
    messages += [{"role": "assistant", "content": "Below the sundial."}, {"role": "user", "content": "Thanks."}]
    third = history.shorten("chat", {"messages": messages}, RULES).body["messages"]
    assert third[:3] == sent
    off = History(words).shorten("chat", {"messages": messages[:3]}, Rules(0.2, 256, recall=False))
    assert off.body["messages"][2] == messages[2]


@pytest.mark.parametrize("room", [None, 150, 10])
def test_what_comes_back_is_short_and_within_the_window(words: Compressor, room: int | None) -> None:
    facts = [f"Berta keeps key {number} below the sundial." for number in range(3)]
    text = "\n".join(story(seed, 150, fact) for seed, fact in enumerate(facts))
    first = [{"role": "user", "content": f"{text}\n\nWhat stood by the violin?"}]
    messages = [*first, {"role": "assistant", "content": "A kettle."},
                {"role": "user", "content": "What does Berta keep below the sundial?"}]  # fmt: skip

    def second(**rules: Any) -> Any:
        history = History(words)
        history.shorten("chat", {"messages": first}, RULES)
        return history.shorten("chat", {"messages": messages}, Rules(0.2, 256, **rules))

    without = second(recall=False, max_prompt_tokens=10**6)
    limit = None if room is None else int((without.estimate + room) * History(words).per_token) + 2
    again = second(max_prompt_tokens=limit)
    restored = again.body["messages"][2]["content"]
    assert limit is None or again.estimate * History(words).per_token <= limit
    assert (again.recalled == 0) == (room == 10)
    if room is None:
        assert any(fact in restored for fact in facts)
        assert len(restored) < 2048  # facts that are far from each other bring nothing of what is between them


def test_short_requests_pass(words: Compressor) -> None:
    body = {"messages": [{"role": "user", "content": "Who is there?"}]}
    done = History(words).shorten("chat", body, RULES)
    assert done.body == body
    assert "below 256" in done.reason
    assert History(words).shorten("chat", {"messages": []}, RULES).reason == "no text"


def test_what_was_marked_for_a_cache_stays(words: Compressor) -> None:
    part = {"type": "text", "text": story(4, 100), "cache_control": {"type": "ephemeral"}}
    body = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Which room?"}]}]}
    done = History(words).shorten("messages", body, RULES)
    assert done.body == body
    assert "marked for a cache" in done.reason


def test_what_is_marked_stays_though_the_same_text_was_shortened_before(words: Compressor) -> None:
    history, text = History(words), story(4, 100)
    plain, asks = {"type": "text", "text": text}, {"type": "text", "text": "Which room?"}
    body = {"messages": [{"role": "user", "content": [plain, asks]}]}
    assert history.shorten("messages", body, RULES).shortened == 1
    marked = {"messages": [{"role": "user", "content": [plain | {"cache_control": {"type": "ephemeral"}}, asks]}]}
    assert history.shorten("messages", marked, RULES).body == marked


def test_newest_tool_results_are_shortened_at_once_if_asked(words: Compressor) -> None:
    """Every message of a turn is written the same in the next one, the newest result too."""
    rules = Rules(0.2, 256, shorten_newest=True)
    history, previous = History(words), list[dict[str, Any]]()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the password of the archive."}]
    for number in range(4):
        result = story(number, 200, f"The password of archive {number} is vermilion.")
        messages += [{"role": "assistant", "content": f"I look at part {number}."},
                     {"role": "tool", "tool_call_id": f"c{number}", "content": result}]  # fmt: skip
        sent = history.shorten("chat", {"messages": messages}, rules).body["messages"]
        assert sent[: len(previous)] == previous
        assert len(sent[-1]["content"]) < len(result) / 2
        assert f"archive {number} is vermilion" in sent[-1]["content"]
        previous = sent
    whole = history.shorten("chat", {"messages": messages[:1] + messages[-2:]}, RULES)
    assert whole.shortened == 1, "what was decided before is written the same, also without the option"


def test_a_window_is_kept_to(words: Compressor) -> None:
    history = History(words)
    text = story(5, 600, "The password of the archive is vermilion.")
    messages = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "Where?"},
                {"role": "tool", "tool_call_id": "c", "content": text},
                {"role": "user", "content": "What is the password of the archive?"}]  # fmt: skip
    whole = history.shorten("chat", {"messages": messages}, RULES)
    assert whole.body["messages"] == messages  # newest: not yet
    done = history.shorten("chat", {"messages": messages}, Rules(0.2, 256, max_prompt_tokens=1000))
    assert done.sent * history.per_token <= 1000
    assert "vermilion" in done.body["messages"][2]["content"]
    with pytest.raises(PromptError, match="must stay as they are"):
        History(words).shorten(
            "chat", {"messages": [{"role": "system", "content": text}, *messages]}, Rules(0.2, 0, 900)
        )
    history.learn(done, int(done.estimate * 1.5))
    assert history.per_token == pytest.approx(1.5, rel=0.01)


def test_the_store_is_bounded(words: Compressor) -> None:
    history = History(words, DecisionStore(3000))
    for seed in range(12):
        body = {
            "messages": [{"role": "user", "content": f"{story(seed, 60)}\n\nWhich room has the {NOUNS[seed % 10]}?"}]
        }
        history.shorten("chat", body, RULES)
        assert history.store.nbytes <= 3000 or len(history.store) == 1
    assert history.store.evictions


def test_the_drafter_reads_only_what_is_new() -> None:
    """By the embedded drafter: the same scores whether the transcript was read at once or turn by turn."""
    parts = [story(seed, 50, f"The special number for {NOUNS[seed]} is {70000 + seed}.") for seed in range(3)]
    messages: list[dict] = []
    slow, quick = (Compressor.open("sp/assets/drafter.gguf", scorer="tail", device="cpu") for _ in range(2))
    history = History(quick)
    for part in parts:
        messages = [*messages, {"role": "user", "content": f"{part}\n\n{ASK}"}]
        got = history.shorten("chat", {"messages": messages}, Rules(0.3, 64, recall=False)).body
        messages = [*messages, {"role": "assistant", "content": "I see."}]
    texts = [TranscriptText("user", each["content"], open=index == 4) for index, each in enumerate(messages[:-1])]
    texts[4] = TranscriptText("user", parts[2], open=True)
    assert got["messages"][4]["content"].startswith(slow.shorten(texts, ASK, keep_ratio=0.3).texts[4].text)
    (memory,) = quick._memories
    assert memory.memory.cache.tokens == len(memory.ids)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 30), ratio=st.sampled_from([0.05, 0.2, 0.5]))
def test_structure_survives(words: Compressor, seed: int, ratio: float) -> None:
    """JSON still parses and tags still pair, whatever is left out; `tests/fuzz_front.py` asks of many more."""
    import fuzz_front

    fuzz_front.check(words, random.Random(seed), ratio)


def test_compress() -> None:
    text = story(6, 200, "The password of the archive is vermilion.")
    made = compress(text, "What is the password of the archive?", keep_ratio=0.1, scorer="bm25")
    assert "vermilion" in made.text
    assert str(made) == made.text
    raw = text.encode()
    kept = b"".join(raw[start:end] for start, end in made.kept).decode()
    assert re.sub(r"\[\.\.\. [\d,]+ \w+ \.\.\.\]", "", made.text).split() == kept.split()
    assert made.kept_tokens <= made.tokens * 0.1 + 1
    plain = compress(text, "What is the password of the archive?", keep_ratio=0.1, scorer="bm25", mark=False)
    assert "[..." not in plain.text
    assert compress(text, "x", keep_ratio=1, scorer="bm25").text == text
    with pytest.raises(PromptError, match="the text is empty"):
        compress(" \n", "x", scorer="bm25")


def test_marks_for_a_cache_on_system_and_newest_block_leave_the_rest_open(words: Compressor) -> None:
    """As coding agents send them: what an earlier turn marked is marked no more, and is shortened then."""
    history, mark = History(words), {"cache_control": {"type": "ephemeral"}}
    messages: list[dict] = [
        {"role": "user", "content": [{"type": "text", "text": "Find the red violin's size.", **mark}]}
    ]
    sizes = []
    for turn in range(3):
        use = {"type": "tool_use", "id": f"t{turn}", "name": "look", "input": {"n": turn}}
        result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": story(turn, 80), **mark}
        for each in messages:
            each["content"] = [{k: v for k, v in part.items() if k != "cache_control"} for part in each["content"]]
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        body = {"system": [{"type": "text", "text": "You are an agent.", **mark}], "messages": messages}
        done = history.shorten("messages", body, RULES)
        sizes.append([len(each["content"][0].get("content", "")) for each in done.body["messages"][2::2]])
        assert done.body["messages"][-1] == messages[-1]
        assert done.body["system"] == body["system"]
        assert [each["content"][0].get("tool_use_id") for each in done.body["messages"][2::2]] == [
            f"t{n}" for n in range(turn + 1)
        ]
    assert sizes[2][:2] == [*sizes[1][:1], sizes[2][1]]
    assert max(sizes[2][:2]) < len(story(0, 80)) / 2


def test_a_json_string_stays_one_and_a_number_stays_whole(words: Compressor) -> None:
    results = [json.dumps(story(4, 60)), "7" * 4000]
    messages = [{"role": "user", "content": "What is the password?"}]
    for number, result in enumerate(results):
        said = {"role": "assistant", "content": f"I look at part {number}."}
        messages += [said, {"role": "tool", "tool_call_id": f"c{number}", "content": result}]
    messages += [
        {"role": "assistant", "content": "Unknown."},
        {"role": "user", "content": "Which room has the violin?"},
    ]
    outcome = History(words).shorten("chat", {"messages": messages}, RULES)
    sent = [message["content"] for message in outcome.body["messages"] if message["role"] == "tool"]
    assert len(json.loads(sent[0])) < len(json.loads(results[0])) / 2
    assert sent[1] == results[1]
    assert (outcome.shortened, outcome.decided) == (1, 1)
    alone = History(words).shorten("chat", {"messages": [*messages[:1], *messages[3:]]}, RULES)
    assert not alone.is_changed
    assert "number" in alone.reason
