"""Processes that keep sessions in a folder, killed with SIGKILL at any moment, and what the next one finds there.

``python tests/session/kill_sessions.py 1000 7`` kills so many, from one seed; a few are killed by `test_killed.py`.
Each is a fork of one process that has the models open. The next one reads every file that was left: each must hold a
state that some process told of before it was written; one of them at least must be as new as the newest that was known
to be written; and a turn that goes on from there must have the logits of a reading anew of all that its cache holds.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_turns import Client, lines, opened, verify
from talks import first_logits, options, pair, said

from sp.prompt.prompt import prompt_of
from sp.session import Conversation, ConversationOptions, Conversations, Pipeline
from sp.session.disk import records

PAIRS = [(t, d) for t in ("qwen3", "qwen35") for d in ("qwen3", "qwen35")]
RUN = options(0.5, max_new_tokens=3)
MEMORY = ConversationOptions(recall_tokens=40, recall_ratio=0.3, snapshots=3)
STORY = 20  # processes that have a folder one after the other
TURNS = 12  # of a process, at most
ROOM = 1 << 30  # bytes of files: none has to go
SLOWEST = 0.15  # seconds until it is killed, at most


class Story:
    """What is known of a folder: the state after each turn, told before it was written, and what was written."""

    def __init__(self, seed: int) -> None:
        self.client = Client(np.random.default_rng(seed))
        self.states: dict[str, int] = {}  # number of the turn by a hash of what is held after it
        self.turns, self.written = 0, -1  # how many there were, and the newest that is known to be in a file

    def hear(self, line: dict[str, Any], told: Counter[str]) -> None:
        """Take in what a process says."""
        if "fault" in line:
            raise AssertionError(line["fault"])
        if "state" in line:
            self.states[line["state"]], self.turns = self.turns, self.turns + 1
            self.client.history = line["history"]
        if "written" in line:
            self.written = max(self.written, self.states[line["written"]])
        told.update(line.get("told", {}))


def hash_of(talk: Conversation) -> str:
    """Of what a conversation says that it holds."""
    return sha256(talk.transcript.tobytes() + b"".join(each.tobytes() for each in talk.slots._columns)).hexdigest()


def check_left(talks: Conversations, story: Story) -> Counter[str]:
    """What another process left: states that were told, and the newest of which that is known."""
    assert talks.shelf is not None
    newest = -1
    for book in list(talks.shelf._books):
        found = talks.shelf.load(book)
        assert found is not None, "a file cannot be read"
        talk = Conversation(talks.pipeline, RUN, MEMORY)
        talk.put(*found)
        state = hash_of(talk)
        assert state in story.states, "a file holds what no process had"
        newest = max(newest, story.states[state])
    assert newest >= story.written, f"turn {story.written} was written, and the newest found is {newest}"
    torn = sum("ends within a turn" in line for line in lines)
    return Counter({"files": len(talks.shelf), "behind": story.turns - 1 - newest, "torn": torn})


def process(where: Pipeline, folder: Path, story: Story, seed: int, out: int, kill_after: int | None) -> None:
    """Check what was left, then turn after turn, until killed: by another, or by itself in the middle of a write."""
    rng = np.random.default_rng(seed)

    def say(**line: Any) -> None:
        os.write(out, json.dumps(line).encode() + b"\n")

    talks = opened(where, MEMORY, folder, ROOM)
    assert talks.shelf is not None
    told = check_left(talks, story)
    if kill_after is not None:
        kill_at(kill_after)
    with first_logits() as seen:
        for turn in range(TURNS):
            story.client.next()
            result = talks.answer(prompt_of(story.client.history, where.target), RUN)
            if turn == 0:
                verify(talks, result, Counter(), seen)
                say(told={**told, "restored": int(result.restored)})
            story.client.history.append(said("assistant", result.answer.text))
            state = hash_of(talks._entries[-1].talk)
            say(state=state, history=story.client.history)
            talks.save()
            if rng.random() < 0.5:
                talks.shelf.drain()
                while talks.has_unsaved:  # with another conversation, too
                    talks.save()
                    talks.shelf.drain()
                say(written=state)


def kill_at(operation: int) -> None:
    """Have this process killed right before so many more calls that change a file."""
    left = [operation]
    records.AT_ONCE = 20_000

    def counted(call: Any) -> Any:
        def one(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return one

    for name in ("pwrite", "fsync", "open", "replace", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


def one_try(where: Pipeline, folder: Path, story: Story, seed: int, told: Counter[str]) -> None:
    """Fork a process, listen to it, and kill it."""
    rng = np.random.default_rng(seed)
    by_itself = int(rng.integers(1, 150)) if rng.random() < 0.6 else None
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reads)
        try:
            process(where, folder, story, seed, writes, by_itself)
        except BaseException:
            with suppress(OSError):
                os.write(writes, json.dumps({"fault": traceback.format_exc()[-3000:]}).encode() + b"\n")
        os._exit(0)  # nothing is closed, as if killed at the end
    os.close(writes)
    raw, deadline = b"", None
    while True:
        ready, _, _ = select.select(
            [reads], [], [], None if deadline is None else max(0.0, deadline - time.monotonic())
        )
        if not ready:
            os.kill(child, signal.SIGKILL)
            deadline = None
            continue
        if not (piece := os.read(reads, 1 << 16)):
            break
        raw += piece
        if deadline is None and b'"told"' in raw and by_itself is None:
            deadline = time.monotonic() + float(rng.uniform(0, SLOWEST))
    os.close(reads)
    status = os.waitpid(child, 0)[1]
    told["killed"] += os.WIFSIGNALED(status)
    for line in raw.split(b"\n")[:-1]:  # the last may be torn, too
        story.hear(json.loads(line), told)


def tries(count: int, seed: int) -> Counter[str]:
    """So many; what was found. AssertionError: a state that never was, one that is lost, or other logits."""
    told = Counter[str]()
    pairs = [pair(*names) for names in PAIRS]
    for each in pairs:  # loops are compiled here, once; by another pipeline, for threads are not forked
        Conversation(Pipeline(each.target, each.drafter), RUN, MEMORY).ask([said("user", "once " * 200)])
    gc.collect()
    gc.freeze()
    for first in range(0, count, STORY):
        story = Story(seed + first)
        with TemporaryDirectory() as folder:
            for number in range(first, min(first + STORY, count)):
                one_try(pairs[first // STORY % 4], Path(folder), story, 1000 * seed + number, told)
                told["tries"] += 1
        told["turns"] += story.turns
    return told


if __name__ == "__main__":
    began = time.perf_counter()
    found = tries(int(sys.argv[1]), int(sys.argv[2]))
    print(f"{time.perf_counter() - began:.0f} s", dict(found))
