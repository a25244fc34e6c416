"""Random turns of two clients: messages, edits, forks, clients that leave, evictions; what must hold after each.

``python tests/session/fuzz_turns.py 10000`` walks further than the tests do, half of the way with files.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from talks import check, first_logits, nmse, options, pair, replayed, said, text

from sp.prompt import transfer_scores
from sp.prompt.prompt import prompt_of
from sp.scoring import SCORERS
from sp.session import ConversationOptions, Conversations, Pipeline, RunOptions, TurnResult
from sp.session.disk.shelf import Shelf
from sp.session.store import lasting

LONGEST = 900  # tokens of a transcript, about
MOST = 3
SHELF = 4 << 20  # bytes of files; a conversation takes up to 1 MB
lines = list[str]()  # what shelves told
EXACT = 1e-8  # recurrent states in float32 over many turns; 1e-11 is seen


class LeftError(Exception):
    """A client is gone."""


class Client:
    """One that sends its whole history each time, and sometimes another history."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.history = [said("system", "one of two")]

    def next(self) -> str:
        """Change the history; what was done."""
        rng, history = self.rng, self.history
        what = rng.choice(["on", "on", "on", "on", "edit", "back", "again", "tool", "new"])
        size = int(rng.integers(1, 60))
        if what == "new" or sum(len(each["content"]) for each in history) > 4 * LONGEST:
            self.history = [said("system", text(rng, int(rng.integers(1, 4)))), said("user", text(rng, size))]
            return "new"
        if what == "again" and history[-1]["role"] == "user":
            return "again"
        if what == "edit" and len(history) > 2:
            at = int(rng.integers(1, len(history)))
            history[at] = said(history[at]["role"], history[at]["content"][: int(rng.integers(0, 40))] + text(rng, 3))
        if what == "back" and len(history) > 3:
            del history[int(rng.integers(2, len(history))) :]
        if what == "tool":
            history += [said("user", text(rng, 4)), said("assistant", text(rng, 2))]
        history.append(said("user", text(rng, size)))
        return str(what)


def bytes_allowed(talks: Conversations, longest: int) -> int:
    """Most that conversations of so many tokens can hold: caches with the room they grow by, and snapshots."""
    target, drafter = (each.model for each in (talks.pipeline.target, talks.pipeline.drafter))
    room = 2 * longest + 512
    caches = target.new_cache(room, "f32").nbytes + drafter.new_cache(room).nbytes
    states = talks.options.snapshots * (target.new_cache(1).state_nbytes + drafter.new_cache(1).state_nbytes)
    return talks.most * (caches + states)


def opened(where: Pipeline, memory: ConversationOptions, folder: Path | None, room: int = SHELF) -> Conversations:
    """A process that starts, with what the one before left in a folder."""
    shelf = None if folder is None else Shelf(folder, room, lasting(where), lines.append)
    return Conversations(where, memory, most=MOST, memory=24 << 20, shelf=shelf)


def ended(talks: Conversations, told: Counter[str], rng: np.random.Generator) -> None:
    """A process that ends, or is killed once everything is written."""
    told.update({name: getattr(talks.counts, name) for name in ("hits", "forks", "misses", "evictions")})
    if talks.shelf is None or rng.random() < 0.5:
        talks.close()
    else:
        talks.shelf.close()


def walk(
    turns: int, seed: int, target: str, drafter: str, *, every: int = 1, folder: Path | None = None
) -> Counter[str]:
    """Let two clients ask, check every turn, and the logits of each `every`-th; what happened. With a folder the
    process ends now and then, and the next one goes on from that.
    """
    rng = np.random.default_rng(seed)
    scorer = SCORERS.build(str(rng.choice(["tail", "random"])))
    memory = ConversationOptions(
        recall=str(rng.choice(["auto", "append", "rewind", "off"])), recall_tokens=40, recall_ratio=0.3, snapshots=3
    )
    run = options(float(rng.choice([0.2, 0.5, 1.0])), scorer=scorer, max_new_tokens=3)
    talks = opened(pair(target, drafter), memory, folder)
    clients, told, longest = [Client(rng), Client(rng)], Counter[str](), 0
    with first_logits() as seen:
        for turn in range(turns):
            if folder is not None and rng.random() < 0.2:
                ended(talks, told, rng)
                talks = opened(talks.pipeline, memory, folder)
                told["restarts"] += 1
            client = clients[int(rng.integers(2))]
            told[client.next()] += 1
            prompt, leaves = prompt_of(client.history, talks.pipeline.target), rng.random() < 0.1
            try:
                result = talks.answer(prompt, run, leaving(rng) if leaves else None, reporter=stopping(rng, leaves))
            except LeftError:
                told["left"] += 1
                continue
            finally:
                talks.save()
            longest = max(longest, len(result.prompt))
            verify(talks, result, told, seen if turn % every == 0 else [])
            client.history.append(said("assistant", result.answer.text))
            assert talks.host_nbytes <= min(24 << 20, bytes_allowed(talks, longest)), "bytes grow"
            assert len(talks) <= MOST
            if rng.random() < 0.1 and len(talks):
                talks._entries[int(rng.integers(len(talks)))].talk.offload()
                told["parked"] += 1
    ended(talks, told, rng)
    told["longest"] = longest
    return told


def verify(talks: Conversations, result: TurnResult, told: Counter[str], seen: list[np.ndarray]) -> None:
    """What holds after a turn; the conversation that answered is the last used, unless it was too large to stay."""
    if len(talks):
        talk = talks._entries[-1].talk
        check(talk, result)
        if seen:
            worst = nmse(seen[-1], replayed(talk, result))
            assert worst < EXACT, f"logits of another text: {worst}"
            told["worst_1e-15"] = max(told["worst_1e-15"], int(worst * 1e15))
            warm_is_cold(talks, result, talk.options)
    told["restored"] += result.restored
    told["recalled"] += result.usage.recalled
    told["cached"] += result.usage.cached
    told["tokens"] += result.usage.prompt


def warm_is_cold(talks: Conversations, result: TurnResult, run: RunOptions) -> None:
    """Scores from kept keys are those of a first reading."""
    if result.scores is None:
        return
    cold = talks.pipeline.score(result.prompt, replace(run, keep_ratio=1.0))
    want = transfer_scores(cold.importance.scores, cold.drafted.bytes, result.prompt.bytes)
    np.testing.assert_allclose(result.scores, want, rtol=5e-3, atol=5e-5 * np.abs(want).max())


def leaving(rng: np.random.Generator):
    """Called with tokens; leaves at one of them, politely or not."""
    left, polite = int(rng.integers(0, 3)), rng.random() < 0.5

    def on_token(token: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0 and not polite:
            raise LeftError
        return left < 0

    return on_token


def stopping(rng: np.random.Generator, leaves: bool):
    """A reporter that raises at some piece of work."""
    after = int(rng.integers(0, 12)) if leaves else -1

    @contextmanager
    def reporter(what: str, total: int):
        def progress(amount: int) -> None:
            nonlocal after
            after -= 1
            if after == 0:
                raise LeftError

        yield progress

    return reporter


if __name__ == "__main__":
    total, began = int(sys.argv[1]), time.perf_counter()
    pairs = [(t, d) for t in ("qwen3", "qwen35") for d in ("qwen3", "qwen35")]
    story, walks = Counter[str](), max(1, total // 250)
    for number in range(walks):
        with TemporaryDirectory() as folder:
            kept = Path(folder) if number // 4 % 2 else None
            found = walk(total // walks, 1000 + number, *pairs[number % 4], every=4, folder=kept)
        highest = {name: max(story[name], found[name]) for name in ("longest", "worst_1e-15")}
        story = story + found
        story.update({name: value - story[name] for name, value in highest.items()})
        print(number + 1, f"{time.perf_counter() - began:.0f} s", dict(sorted(story.items())), flush=True)
