"""Selectors of whole units in conversations: of a token that units share only what is kept is read."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from talks import pair as small
from talks import said

from sp.chat import Call, Turn
from sp.errors import ConfigError, PromptError
from sp.gguf import ChatTemplate
from sp.prompt.prompt import prompt_of
from sp.scoring import SCORERS
from sp.selection import SELECTORS, Selection, SelectionRequest, Selector
from sp.session import Conversation, ConversationOptions, Pipeline, RunOptions, embedded
from sp.session.compress import PART, SelectedTokens, SelectionDetails, compress
from sp.session.memory import Slots, message_ends, message_starts
from sp.session.recall import Planner, runs_of, whole_sentences

TOOLS = ChatTemplate(
    "{% for t in tools or [] %}({{ t | tojson }}){% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "{{ '\\n' }}</{{ m.role }}>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def pair() -> Pipeline:
    """The embedded drafter in both roles: its words are the target's, and it reads four times faster."""
    opened = Pipeline.open(embedded("drafter"), embedded("drafter"), device="cpu")
    assert opened.drafter
    return Pipeline(replace(opened.target, template=TOOLS), replace(opened.drafter, template=TOOLS))


@dataclass(frozen=True)
class Halved(Selector):
    """Chunks; of a word before what is left out two letters are read: parts of more tokens than one are rare here."""

    def select(self, request: SelectionRequest) -> Selection:
        found = SELECTORS.build("top_chunks", {"chunk_size": 8, "neighbours": 0, "sink": 0, "tail": 0}).select(request)
        assert request.spans is not None
        gaps = np.flatnonzero(found.selected[:-4] & ~sliding_window_view(found.selected, 4)[1:].any(axis=1))
        spans = ((token, *request.spans[token].tolist()) for token in gaps.tolist())
        read = {token: ((a + 1, a + 2), (b - 1, b)) for token, a, b in spans if request.text[a + 1 : b].isalpha()}
        return replace(found, byte_ranges={token: parts for token, parts in read.items() if parts[0][1] < parts[1][0]})


def rows(seed: int) -> str:
    """JSON whose last bracket is of one token with the line break behind it."""
    rng = np.random.default_rng(seed)
    return json.dumps([{"id": int(rng.integers(99)), "of": ["x", n], "said": ""} for n in range(6)])


def words(seed: int) -> str:
    """Words that are tokens, whose first and last letters are none."""
    return " ".join(np.random.default_rng(seed).choice(["number", "value", "return", "before", "small", "green"], 200))


def options(selector: Selector | str, **changes: object) -> RunOptions:
    given = {"keep_ratio": 0.3, "compress": "always", "kv": "f32", "max_new_tokens": 2} | changes
    if isinstance(selector, str):
        selector = SELECTORS.build(selector, {"longest": 12, "sink": 0, "tail": 0})
    return RunOptions(selector=selector, scorer=SCORERS.build("random"), **given)  # type: ignore[arg-type]


def read(talk: Conversation, slots: Slots) -> str:
    """The text that the target has before it."""
    tokenizer = talk.pipeline.target.tokenizer
    return tokenizer.decode(slots.ids[slots.ids != tokenizer.bos_id])


def results(text: str) -> list[str]:
    """What tools said of it."""
    return [part.split("\n</tool>")[0] for part in text.split("<tool>")[1:]]


def history(*texts: str) -> list[Turn]:
    turns = [Turn("user", "look")]
    for text in texts:
        turns += [Turn("tool", text), Turn("user", "which?")]
    return turns


def test_json_that_is_kept_parses_as_the_target_reads_it(pair: Pipeline) -> None:
    parts, counts = 0, set[int]()
    talk = Conversation(pair, options("json"), ConversationOptions(recall="off"))
    turns: list[Turn] = []
    for turn in range(2):
        turns += history(*(rows(10 * turn + number) for number in range(6)))
        found = talk.ask(turns)
        assert found.usage.kept < found.usage.new
        slots = talk.slots.first(found.usage.held)
        said = results(read(talk, slots))
        assert len(said) == 6 * (turn + 1)
        counts |= {len(json.loads(text)) if text.strip() else 0 for text in said}
        own = slots.source >= 0
        parts += int((slots.ids[own] != talk.transcript[slots.source[own]]).sum())
        turns.append(Turn("assistant", found.answer.text))
    assert parts  # or there was nothing to see
    assert len(counts) > 2


@pytest.mark.parametrize("selector", ["segments", Halved()], ids=["segments", "parts"])
def test_a_first_turn_reads_what_a_run_reads(pair: Pipeline, selector: Selector | str) -> None:
    said = map(rows, range(6)) if isinstance(selector, str) else [words(1)]
    talk = Conversation(pair, options(selector))
    found = talk.ask(history(*said))
    _, selection = pair.select(pair.score(found.prompt, talk.options), found.prompt, talk.options)
    assert selection.byte_ranges
    tokenizer = pair.target.tokenizer
    ids = compress(
        found.prompt, selection.selected, tokenizer, "original", "byte_span", SelectionDetails(selection.byte_ranges)
    ).ids
    assert read(talk, talk.slots.first(found.usage.held)) == tokenizer.decode(ids[ids != tokenizer.bos_id])


@pytest.mark.parametrize("way", ["off", "append", "rewind"])
def test_parts_of_tokens_from_turn_to_turn(pair: Pipeline, way: str) -> None:
    memory = ConversationOptions(recall=way, recall_ratio=0.5, recall_tokens=400)  # type: ignore[arg-type]
    talk = Conversation(pair, options(Halved()), memory)
    turns = history(words(1))
    first = talk.ask(turns)
    before, n = talk.slots.first(first.usage.held), first.usage.prompt
    more = before.source == PART
    assert more.any()
    assert before.offset == 0
    assert not before.present(n)[before.place[more]].any()  # what was there can come back
    assert (np.diff(before.positions) > 0).all()
    turns += [Turn("assistant", first.answer.text), Turn("user", "and now?")]
    second = talk.ask(turns)
    slots = talk.slots.first(second.usage.held)
    assert (second.usage.recalled > 0) == (way != "off")
    assert second.present[:n][before.present(n)].all()
    assert np.bincount(slots.source[slots.source >= 0]).max() == 1
    assert (np.diff(slots.positions) > 0).all()
    for each in second.recalled:
        held = slots.ids[(slots.source >= each.start) & (slots.source < each.end)]
        assert talk.pipeline.target.tokenizer.decode(held) == each.text
    start = min((each.start for each in second.recalled), default=n)
    if way == "rewind":  # what is read again is read whole
        again = slots.place >= start
        np.testing.assert_array_equal(slots.ids[again], talk.transcript[slots.source[again]])
    else:
        np.testing.assert_array_equal(slots.ids[: len(before)], before.ids)


def test_a_part_that_has_no_room_behind_stays_a_token(pair: Pipeline) -> None:
    tokenizer = pair.target.tokenizer
    prompt = prompt_of(history("a number of a number"), pair.target).tokenise(tokenizer)
    text, edges = prompt.prompt.text, prompt.bytes.tolist()
    token = next(at for at, (start, end) in enumerate(edges) if text[start:end] == " number")
    start = int(prompt.bytes[token, 0])
    ranges, kept = ((start + 1, start + 2), (start + 4, start + 5)), np.ones(len(prompt), bool)
    part = tokenizer.encode("nb", begins=False).ids
    np.testing.assert_array_equal(SelectedTokens.of(prompt, kept, {token: ranges}, tokenizer).ids, prompt.ids)
    kept[token + 1 : token + len(part)] = False
    free = SelectedTokens.of(prompt, kept, {token: ranges}, tokenizer)
    assert len(part) == 2
    assert free.ids[token : token + 2].tolist() == part.tolist()
    assert free.source[token : token + 2].tolist() == [token, PART]
    assert free.selected.all()


def test_calls_are_known_as_clients_write_them(pair: Pipeline) -> None:
    arguments = {"path": "a.py"}
    for written in (arguments, json.dumps(arguments)):
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": written}}
        messages = [
            said("user", "Look."),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "x = 1", "tool_call_id": "c1"},
        ]
        turns = [
            Turn("user", "Look."),
            Turn("assistant", "", calls=(Call("look", arguments, "c1"),)),
            Turn("tool", "x = 1", call_id="c1"),
        ]
        schema = {"type": "function", "function": {"name": "look", "parameters": {}}}
        prompt = prompt_of(messages, pair.target, [schema])
        assert prompt == prompt_of(turns, pair.target, [schema])
        assert '[look {"path": "a.py"}]' in prompt.text
        shown = [(one.kind, prompt.text[one.start : one.end]) for one in prompt.segments]
        assert [kind for kind, _ in shown] == ["tools", "user", "tool"]
        assert [text for _, text in shown[1:]] == ["Look.", "x = 1"]
        tokenised = prompt.tokenise(pair.target.tokenizer)
        assert len(message_ends(tokenised)) == len(message_starts(tokenised)) == 3  # none inside of a call


@pytest.mark.parametrize("call", [1, {}, {"function": {"name": "look", "arguments": "{"}}, {"function": {"name": ""}}])
def test_what_is_no_call_is_told(call: object) -> None:
    target = replace(small().target, template=TOOLS)
    with pytest.raises(PromptError, match=r"messages\[1\]\.tool_calls\[0\] is not a tool call"):
        prompt_of([said("user", "a"), {"role": "assistant", "tool_calls": [call]}], target)


def test_names_of_calls_are_no_markup(pair: Pipeline) -> None:
    special = pair.target.tokenizer.decode(np.array([min(pair.target.tokenizer.special_ids)]))
    for call in (Call(special), Call("look", {special: 1})):
        with pytest.raises(PromptError, match="special token in a name"):
            prompt_of([Turn("user", "a"), Turn("assistant", "", calls=(call,))], pair.target)


def test_marks_are_refused(pair: Pipeline) -> None:
    with pytest.raises(ConfigError, match="omit mark_omitted"):
        Conversation(pair, options("lines", mark_omitted=True))


def test_what_comes_back_is_whole_sentences_best_first_within_the_budget() -> None:
    bounds = np.array([0, 4, 9, 12, 20])
    out = np.ones(20, bool)
    out[5] = False  # stands in the cache
    taken = np.isin(np.arange(20), [2, 6, 15])
    scores = np.zeros(20, np.float32)
    scores[[2, 6, 15]] = 1, 3, 2
    everything = whole_sentences(taken, out, scores, bounds, 100)
    assert everything.nonzero()[0].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, *range(12, 20)]
    assert whole_sentences(taken, out, scores, bounds, 13).nonzero()[0].tolist() == [4, 6, 7, 8, *range(12, 20)][:12]
    assert whole_sentences(taken, out, scores, bounds, 11).nonzero()[0].tolist() == [4, 6, 7, 8]
    assert whole_sentences(taken, out, scores, bounds, 3).tolist() == taken.tolist()
    assert not whole_sentences(np.zeros(20, bool), out, scores, bounds, 9).any()


def test_runs_of_one_sentence_are_joined_without_a_gap() -> None:
    bounds, taken = np.array([0, 4, 8, 12]), np.array([0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0], bool)
    runs = runs_of(taken, np.arange(12, dtype=np.float32), bounds)
    assert [(run.start, run.end, run.score, run.joined) for run in runs] == [
        (1, 2, 3, False), (3, 4, 3, True), (8, 10, 9, False)
    ]  # fmt: skip
    assert runs_of(np.zeros(12, bool), np.zeros(12, np.float32), bounds) == []
    ids = np.arange(100, 120)
    old = Slots.of(ids, np.array([0, 2, 6]))
    planner = Planner(old, ids, 12, SelectedTokens(ids, np.arange(20), np.ones(20, bool)), "original")
    plan = planner.appended(runs, 15, np.array([7]), np.array([8, 9]))
    assert plan.slots.ids.tolist() == [100, 102, 106, 112, 113, 114, 101, 103, 7, 108, 109, 8, 9, *range(115, 120)]
