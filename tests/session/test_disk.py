"""Conversations in files: what is read is what was written, whatever became of the file, its folder and the process."""

from __future__ import annotations

import errno
import json
import random
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Event

import fuzz_turns
import numpy as np
import pytest
from fuzz_texts import changed_json
from talks import ARCHS, check, options, pair, said, text

from sp.errors import ConfigError, PromptError
from sp.prompt.prompt import prompt_of
from sp.session import Conversations, RunOptions, TurnResult
from sp.session.disk import records as disk
from sp.session.disk.contents import RecordIndex
from sp.session.disk.records import append, records
from sp.session.disk.shelf import Book, Shelf
from sp.session.store import lasting


@pytest.mark.parametrize(("target", "drafter"), [ARCHS, ARCHS[::-1]])
def test_random_turns_with_restarts(target: str, drafter: str, tmp_path: Path) -> None:
    """Every turn is checked against a reading anew of all that stands in the caches."""
    fuzz_turns.lines.clear()
    told = fuzz_turns.walk(25, 3, target, drafter, folder=tmp_path)
    assert told["restored"] > 1
    assert told["restarts"] > 2
    assert told["forks"]
    assert all("sessions of these models" in line for line in fuzz_turns.lines), "a file was damaged"


RUN = options(max_new_tokens=3)
CHAT = [said("system", "one"), said("user", text(np.random.default_rng(5), 80))]


class Process:
    """A pair with a folder, and what its shelf told."""

    def __init__(self, folder: Path, room: int = 1 << 30, **how: object) -> None:
        self.lines: list[str] = []
        shelf = Shelf(folder, room, lasting(pair()), self.lines.append)
        self.talks = Conversations(pair(), shelf=shelf, **how)
        self.shelf = shelf

    def ask(self, chat: list[dict[str, str]], run: RunOptions = RUN) -> TurnResult:
        result = self.talks.answer(prompt_of(chat, self.talks.pipeline.target), run)
        self.talks.save()
        self.shelf.drain()
        return result

    def turns(self, count: int, chat: list[dict[str, str]] = CHAT) -> list[TurnResult]:
        """Turn after turn of a chat."""
        found, chat = list[TurnResult](), list(chat)
        for turn in range(count):
            found.append(self.ask(chat))
            chat += [said("assistant", found[-1].answer.text), said("user", f"more {turn}")]
        return found


def told(process: Process) -> list[str]:
    """What its shelf told beside what it found."""
    return [line for line in process.lines if "sessions of these models" not in line]


@contextmanager
def process(folder: Path, room: int = 1 << 30, **how: object) -> Iterator[Process]:
    made = Process(folder, room, **how)
    try:
        yield made
    finally:
        made.talks.close()


def written(folder: Path, turns: int = 3) -> Path:
    """A folder with one conversation: its file."""
    with process(folder) as first:
        first.turns(turns)
    (path,) = folder.glob("*.sp-session")
    return path


def ends_of(path: Path) -> list[int]:
    """Where the records of a file end."""
    with path.open("rb") as file:
        return [each.end for each in records(file)]


def test_each_turn_adds_a_record_of_what_is_new(tmp_path: Path) -> None:
    path = written(tmp_path)
    first, second, third = ends_of(path)
    assert third == path.stat().st_size
    assert second - first < first / 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, "lock"])


def test_a_folder_that_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    written(tmp_path / "a" / "b", 1)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_torn_file_is_the_last_whole_turn(tmp_path: Path) -> None:
    """At whatever byte it ends; what is behind it is cut off, and the next turn goes there."""
    path, rng = written(tmp_path), np.random.default_rng(1)
    raw, ends = path.read_bytes(), ends_of(path)
    cuts = [*ends[:-1], *(end - 1 for end in ends), *rng.integers(ends[0], len(raw), 1).tolist()]
    for cut in cuts:
        path.write_bytes(raw[:cut])
        whole = sum(end <= cut for end in ends)
        with process(tmp_path) as next_one:
            results = next_one.turns(3)
            assert [each.restored for each in results] == [whole > 0, False, False]
            assert not path.exists() or ends_of(path)[:whole] == ends[:whole]
            assert len(told(next_one)) == (cut not in ends)
            check(next_one.talks._entries[-1].talk, results[-1])
        for each in tmp_path.glob("*.sp-session"):
            each.unlink()


def test_a_changed_byte_is_never_read(tmp_path: Path) -> None:
    """In a head or an array: what was before that record counts; where that is nothing the file goes."""
    path, rng = written(tmp_path), np.random.default_rng(2)
    raw, ends = path.read_bytes(), ends_of(path)
    with path.open("rb") as file:
        parts = sorted((each.start, each.nbytes) for each in RecordIndex(list(records(file)))._parts if each.nbytes)
    in_parts = [start + int(rng.integers(size)) for start, size in rng.permutation(parts)[:4].tolist()]
    in_heads = [each.end() - 1 for each in re.finditer(rb'"whole":\d+', raw)]  # of another number all else would do
    assert len(in_heads) == len(ends)
    for at in in_heads + in_parts:
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with process(tmp_path) as next_one:
            results = next_one.turns(3)
            assert results[0].restored == (at >= ends[0])
            assert len(told(next_one)) == 1
            assert path.name in told(next_one)[0]
            assert path.exists() == results[0].restored
            check(next_one.talks._entries[-1].talk, results[-1])
        for each in tmp_path.glob("*.sp-session"):
            each.unlink()


def test_a_record_of_another_file_does_not_follow(tmp_path: Path) -> None:
    raws = []
    for number in range(2):
        with (tmp_path / f"{number}").open("w+b", buffering=0) as file:
            first = append(file, None, {"number": number}, {"a": np.full(9, number)})
            second = append(file, first, {"number": number}, {"a": np.full(9, number)})
            assert [each.facts["number"] for each in records(file)] == [number, number]
            raws.append((tmp_path / f"{number}").read_bytes())
    assert len(raws[0]) == len(raws[1]) == second.end
    (tmp_path / "0").write_bytes(raws[0][: first.end] + raws[1][first.end :])
    with (tmp_path / "0").open("rb") as file:
        assert len(list(records(file))) == 1


def test_what_others_left_in_the_folder_stays(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "x.sp-session.part").write_text("half")
    (tmp_path / f"{'0' * 32}.sp-session").write_text("not one of these")
    (tmp_path / f"{'1' * 32}.sp-session").symlink_to(tmp_path / "notes.txt")
    with process(tmp_path) as next_one:
        assert len(next_one.shelf) == 1
        lines = told(next_one)
        assert len(lines) == 2
        assert "is damaged, or of another version; it is removed" in lines[0]
        assert "it is skipped" in lines[1]
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {path.name, "lock", "notes.txt", f"{'1' * 32}.sp-session"}


def test_other_options_and_other_models_are_other_conversations(tmp_path: Path) -> None:
    path = written(tmp_path)
    with process(tmp_path) as next_one:
        assert next_one.ask(CHAT, options(0.5, max_new_tokens=3)).match == "miss"
        assert next_one.ask(CHAT, replace(RUN, max_new_tokens=2)).restored, "the length of an answer leaves no trace"
    shelf = Shelf(tmp_path, 1 << 30, "other models", (lines := []).append)
    assert "sessions of these models: 0, of others: 2" in lines[0]
    shelf.close()
    assert path.exists()


def test_a_folder_is_for_one_process(tmp_path: Path) -> None:
    with process(tmp_path), pytest.raises(ConfigError, match="is in use by another server; use another folder"):
        Process(tmp_path)
    with process(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/x: Not a directory; use a writable folder"):
        Process(tmp_path / "file" / "x")


def test_those_written_longest_ago_go_first(tmp_path: Path) -> None:
    size = written(tmp_path / "one", 1).stat().st_size
    chats = [[said("system", "one"), said("user", f"{number} {CHAT[1]['content']}")] for number in range(4)]
    with process(tmp_path, 3 * size + size // 2) as first:
        for chat in chats:
            first.ask(chat)
        assert len(first.shelf) == 3
        assert first.shelf.nbytes <= first.shelf.most
        first.ask([*chats[0], said("assistant", "x"), said("user", "y")])  # its file is gone: it is written anew
    with process(tmp_path, 3 * size + size // 2) as second:
        assert [second.ask(chat).restored for chat in (chats[0], chats[1])] == [True, False]
    with process(tmp_path, size // 2) as third:
        assert len(third.shelf) == 0
        third.ask(CHAT)
        assert len(third.shelf) == 0
        assert [line for line in third.lines if "would exceed the limit of all files" in line]


def test_a_request_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    with process(tmp_path) as first:
        with pytest.raises(PromptError):
            first.ask(CHAT, replace(RUN, max_new_tokens=10**7))
        first.talks.save()
        first.shelf.drain()
        assert len(first.shelf) == 0


def test_what_had_to_leave_memory_comes_back_from_its_file(tmp_path: Path) -> None:
    chats = [[said("system", "one"), said("user", f"{number} {CHAT[1]['content']}")] for number in range(3)]
    with process(tmp_path, most=1) as only:
        for chat in chats:
            only.ask(chat)
        result = only.ask([*chats[0], said("assistant", "x"), said("user", "y")])
        assert (result.match, result.restored) == ("hit", True)
        check(only.talks._entries[-1].talk, result)


def test_a_full_disk_costs_the_file_and_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with process(tmp_path) as first:
        chat = list(CHAT)
        with monkeypatch.context() as patch:

            def full(*_: object) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(disk.os, "pwrite", full)
            for turn in range(2):
                result = first.ask(chat)
                chat += [said("assistant", result.answer.text), said("user", f"more {turn}")]
        assert len(first.shelf) == 0
        assert len(first.lines) == 1
        assert "cannot be written (No space left on device); it is removed" in first.lines[0]
        first.ask(chat)
        assert len(first.shelf) == 1
    with process(tmp_path) as second:
        assert second.ask(chat).restored


def test_a_file_of_which_little_counts_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sp.session.disk.shelf.MOST_RECORDS", 3)
    path = written(tmp_path, 5)
    assert len(ends_of(path)) < 4
    with process(tmp_path) as second:
        results = second.turns(5)
        assert results[0].restored
        check(second.talks._entries[-1].talk, results[-1])


def test_a_busy_shelf_is_asked_again(tmp_path: Path) -> None:
    """Turns that come faster than they can be written are written together."""
    with process(tmp_path) as first:
        gate = Event()
        first.shelf._waiting.append((Book(tmp_path), first.shelf._writer.submit(gate.wait)))
        chat = list(CHAT)
        for turn in range(3):
            result = first.talks.answer(prompt_of(chat, first.talks.pipeline.target), RUN)
            first.talks.save()
            chat += [said("assistant", result.answer.text), said("user", f"more {turn}")]
        assert not first.talks.has_unsaved
        gate.set()
        first.shelf.drain()
        assert first.talks.has_unsaved
        first.talks.save()
        assert not first.talks.has_unsaved
    (path,) = tmp_path.glob("*.sp-session")
    assert len(ends_of(path)) == 1
    with process(tmp_path) as second:
        assert second.ask(chat[:-2]).usage.new < 20


def test_a_head_that_says_anything_at_all_is_no_worse_than_a_damaged_one(tmp_path: Path) -> None:
    """Its checksum is right, as if somebody had written it so."""
    path, rng, found = written(tmp_path, 1), random.Random(3), Counter[str]()
    raw = path.read_bytes()
    lead = len(disk.MAGIC) + disk.FRAME.size
    length, _ = disk.FRAME.unpack(raw[len(disk.MAGIC) : lead])
    head, rest = json.loads(raw[lead : lead + length]), raw[lead + length :].lstrip(b"\0")
    for _ in range(40):
        facts = changed_json(head["facts"], rng) if rng.random() < 0.7 else json.dumps(head["facts"])
        parts = changed_json(head["parts"], rng) if rng.random() < 0.3 else json.dumps(head["parts"])
        text = f'{{"before":"","facts":{facts},"parts":{parts}}}'.encode("utf-8", "surrogatepass")
        made = disk.MAGIC + disk.FRAME.pack(len(text), sha256(text).digest()) + text
        path.write_bytes(made + bytes(-len(made) % disk.ALIGN) + rest)
        with process(tmp_path) as next_one:
            result = next_one.ask(CHAT)
            check(next_one.talks._entries[-1].talk, result)
            assert result.restored or told(next_one) or next_one.talks.counts.misses
            assert all(len(line) < 300 and line.isprintable() for line in next_one.lines)
            found["restored" if result.restored else "told" if told(next_one) else "not found"] += 1
        for each in tmp_path.glob("*.sp-session"):
            each.unlink()
    assert found["told"] > 10
