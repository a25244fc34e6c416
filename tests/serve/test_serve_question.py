"""One string that is a document and its question: what is taken for the question, kept, and told."""

from __future__ import annotations

from typing import Any

import pytest
import serving as tool
import web
from serving import ALWAYS, TASKS

from sp.prompt import Prompt
from sp.serve.messages import LONG, LONGEST, QuestionSpan, chat_prompt, question_of, to_prompt
from sp.serve.protocol import CompletionJob
from sp.session import Pipeline, RunOptions

FILL = "The grass is green. The sky is blue. "
DOC = FILL * 100


def taken(pair: Pipeline, *parts: str, keep_ratio: float = 1.0) -> tuple[str, str, str]:
    """How the question was found, what it is, and what of the opening is kept."""
    asked = question_of(parts, "auto", pair.target.tokenizer, keep_ratio)
    whole = "\n\n".join(parts)
    return asked.kind, whole[asked.start :], whole[: asked.opening]


@pytest.mark.parametrize(
    ("text", "found", "question"),
    [
        (f"{DOC}\n\nWhat is green?", "paragraph", "What is green?"),
        (f"{DOC}\n\nWhat is green?\nAnswer in one word.\n", "paragraph", "What is green?\nAnswer in one word.\n"),
        (f"{DOC}\n\nWhat is green?\n\nAnswer:", "paragraph", "What is green?\n\nAnswer:"),
        (f"{DOC}What is green?", "sentence", "What is green?"),
        (f"{DOC}What is green? One word.", "sentence", "What is green? One word."),
        (f"{DOC}\nName the green thing", "line", "Name the green thing"),
        (f"{DOC}Name the green thing.", "sentence", "Name the green thing."),
        (f"x\n\n{DOC}Is it green?", "sentence", "Is it green?"),  # the last paragraph is the document
        ("是绿色的。" * 400 + "什么是绿色的？", "sentence", "什么是绿色的？"),
        ("word " * 2000, "end", None),
        ("x" * 9000, "end", None),
    ],
)
def test_what_is_taken_for_the_question(pair: Pipeline, text: str, found: str, question: str | None) -> None:
    how, what, _ = taken(pair, text)
    assert how == found
    assert what == question if question is not None else 0 < len(what.rstrip()) <= LONGEST


def test_short_turns_are_questions_as_a_whole_and_so_is_a_last_part(pair: Pipeline) -> None:
    short = "The grass is green.\n\nWhat is green?"
    assert taken(pair, short) == ("turn", short, "")
    assert taken(pair, DOC, short) == ("part", short, "")
    assert taken(pair, "note", f"{DOC}\n\nWhat?") == ("paragraph", "What?", "note\n\n")
    encode = pair.target.tokenizer.encode
    text = next(FILL * n for n in range(1, 200) if len(encode(FILL * (n + 1))) > LONG)
    assert taken(pair, text)[0] == "turn"
    assert taken(pair, text + FILL)[0] != "turn"


def test_a_short_opening_is_kept_where_there_is_room(pair: Pipeline) -> None:
    asked = f"Is the grass green?\n\n{DOC}\n\nAnswer briefly."
    assert taken(pair, asked) == ("paragraph", "Answer briefly.", "Is the grass green?\n\n")
    assert taken(pair, asked, keep_ratio=0.01)[2] == ""
    assert taken(pair, f"{FILL * 20}\n\n{DOC}\n\nWhat?")[2] == ""
    parts = "Is the grass green?", DOC, "Answer briefly."
    assert taken(pair, *parts) == ("part", "Answer briefly.", "Is the grass green?\n\n")
    assert taken(pair, *parts, keep_ratio=0.01)[2] == ""
    assert taken(pair, "The grass is green.", "Is it?", keep_ratio=0.5)[2] == ""


def test_question_and_opening_are_protected_and_the_document_is_not(pair: Pipeline) -> None:
    text = f"Read é.\n\n{DOC}\n\nWhat is green?"
    asked = question_of([text], "auto", pair.target.tokenizer)
    turns = (
        {"role": "user", "parts": ["hi"]},
        {"role": "assistant", "parts": ["yes?"]},
        {"role": "user", "parts": [text]},
    )
    prompt = chat_prompt(turns, (), pair.target.template, pair.target.tokenizer, asked)  # type: ignore[arg-type]
    raw = prompt.text.encode()
    spans = {
        kind: [raw[s.start : s.end].decode() for s in prompt.spans if s.kind == kind]
        for kind in ("protected", "question")
    }
    assert spans["question"] == ["What is green?"]
    assert "Read é.\n\n" in spans["protected"]
    assert "What is green?" in spans["protected"]
    assert not any("The grass" in each for each in spans["protected"])


def post(server: tool.Running, content: str, **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 12} | more
    reply = web.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_one_string_is_compressed_told_and_answered_as_in_full(server: tool.Running) -> None:
    key, value = TASKS[0]
    text = f"{tool.document(key, value, 16)}\n\n{tool.question(key)}"
    found = post(server, text, **ALWAYS)
    told = found["usage"]["sp"]
    assert told["compressed"]
    assert told["kept_tokens"] < 0.6 * found["usage"]["prompt_tokens"]
    assert told["question"]["found"] == "paragraph"
    assert 3 < told["question"]["tokens"] < 30
    full = post(server, text, sp={"off": True})
    assert found["choices"][0]["message"]["content"] == full["choices"][0]["message"]["content"] == f"{value}."
    kept = post(server, text, sp={"compress": "auto", "protect": "turn"})["usage"]["sp"]
    assert kept["question"]["found"] == "turn"
    assert not kept["compressed"]  # all of it is kept
    assert 'sp_questions_total{found="paragraph"}' in web.get(f"{server.url}/metrics").text


@pytest.mark.parametrize("text", [f"{FILL * 55}Green?", "word " * 900, f"{FILL * 55}\n\n\n\n"])
def test_no_form_of_a_long_string_is_refused(server: tool.Running, text: str) -> None:
    told = post(server, text, max_tokens=1, sp={"compress": "always", "keep_ratio": 0.5})["usage"]["sp"]
    assert told["compressed"]


@pytest.mark.parametrize(
    ("text", "found", "question"),
    [
        ("The grass is", "turn", "The grass is"),
        (DOC + "The sky is", "sentence", "The sky is"),
        (f"{DOC}\n\nWhat is green?", None, "What is green?"),
        (f"x\n\n{DOC} Is it é?", "sentence", "Is it é?"),
    ],
)
def test_completions_have_a_question_too(pair: Pipeline, text: str, found: str | None, question: str) -> None:
    def made(options: RunOptions) -> tuple[Prompt, QuestionSpan | None]:
        return to_prompt(CompletionJob("completion", options, prompt=text), None, pair.target.tokenizer)

    prompt, asked = made(RunOptions())
    assert (asked and asked.kind) == found
    span = next(each for each in prompt.spans if each.kind == "question")
    assert prompt.text.encode()[span.start : span.end].decode() == question
    assert made(RunOptions(compress="always"))[0].spans == prompt.spans


def test_a_short_completion_is_read_whole(server: tool.Running) -> None:
    reply = web.post(f"{server.url}/v1/completions", json={"prompt": "The grass is", "max_tokens": 2}, timeout=30)
    assert not reply.json()["usage"]["sp"]["compressed"]


ENVIRONMENT = "<environment_details>\n# Open files\na.py\n</environment_details>"
TASK = "<task>\nFind out where the tap drips, and mend it.\n</task>"


def protected(pair: Pipeline, messages: list[dict[str, Any]], **asked: Any) -> tuple[str, str, list[str]]:
    """How the question was found, what of the prompt is kept, and what belongs to the question."""
    job = CompletionJob("chat", RunOptions(keep_ratio=0.05), tuple(messages), **asked)
    prompt, question = to_prompt(job, pair.target.template, pair.target.tokenizer)
    assert question is not None
    raw = prompt.text.encode()
    spans = [(each.kind, raw[each.start : each.end].decode()) for each in prompt.spans]
    kept = " ".join(text for kind, text in spans if kind == "protected")
    return question.kind, kept, [text for kind, text in spans if kind == "question"]


def user(*parts: str) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def test_a_task_before_its_environment_is_the_question_too(pair: Pipeline) -> None:
    found, kept, asked = protected(pair, [user(TASK, DOC, ENVIRONMENT)])
    assert found == "task"
    assert asked == [TASK, ENVIRONMENT]
    assert TASK in kept
    assert "The grass" not in kept


def test_the_task_of_an_earlier_turn_stays_while_its_results_may_go(pair: Pipeline) -> None:
    """An agent that sends results as words of the user, and its environment behind them each time."""
    said = {"role": "assistant", "parts": ["<read_file>a.py</read_file>"]}
    result = "[read_file for 'a.py'] Result:"
    found, kept, asked = protected(pair, [user(TASK, ENVIRONMENT), said, user(result, DOC, ENVIRONMENT)])
    assert found == "task"
    assert asked == [TASK, result, ENVIRONMENT]
    assert "The grass" not in kept


def test_of_several_short_parts_as_many_are_kept_as_there_is_room_for(pair: Pipeline) -> None:
    """The first before the last ones; of one that is too long its question and its beginning."""
    short = [f"<note>{number} {FILL * 6}</note>" for number in range(12)]
    found, kept, _ = protected(pair, [user(TASK, *short, ENVIRONMENT)])
    assert found == "task"
    assert TASK in kept
    there = [number for number, each in enumerate(short) if each in kept]
    assert 0 < len(there) < 12
    assert there == list(range(12 - len(there), 12))
    long = f"Mend the tap.\n\n{DOC}\n\nWhere does it drip?"
    found, kept, asked = protected(pair, [user(long, ENVIRONMENT)])
    assert found == "task"
    assert "Mend the tap." in kept
    assert asked == ["Mend the tap.\n\n", "Where does it drip?", ENVIRONMENT]
    assert "The grass" not in kept


def test_an_environment_that_is_long_is_compressed_and_the_task_is_not(pair: Pipeline) -> None:
    found, kept, asked = protected(pair, [user(TASK, f"<environment_details>\n{DOC}\n</environment_details>")])
    assert found == "task"
    assert asked[0] == TASK
    assert len(kept) < 1500 < len(DOC)


@pytest.mark.parametrize(
    "parts",
    [(DOC, "What is green?"), ("<doc>a</doc>", "What?"), (ENVIRONMENT,), (TASK, DOC, "</a> b <a>"), (TASK, "<a>b</c>")],
)
def test_a_last_part_that_is_not_set_off_is_the_question_as_ever(pair: Pipeline, parts: tuple[str, ...]) -> None:
    found, _, asked = protected(pair, [user("<task>old</task>"), {"role": "assistant", "parts": ["ok"]}, user(*parts)])
    assert found == ("part" if len(parts) > 1 else "turn")
    assert asked == [parts[-1]]


def test_results_of_tools_at_the_end_leave_the_question_of_the_user(pair: Pipeline) -> None:
    call = {"role": "assistant", "parts": [""], "calls": ()}
    messages = [user(TASK, ENVIRONMENT), call, {"role": "tool", "parts": [DOC], "call_id": "c1"}]
    found, kept, asked = protected(pair, messages)
    assert found == "task"
    assert asked == [TASK, ENVIRONMENT]
    assert "The grass" not in kept


def test_what_was_taken_for_the_task_is_told(server: tool.Running) -> None:
    content = [{"type": "text", "text": text} for text in (TASK, DOC, ENVIRONMENT)]
    told = post(server, content, max_tokens=1, **ALWAYS)["usage"]["sp"]  # type: ignore[arg-type]
    assert told["question"]["found"] == "task"
    assert told["question"]["tokens"] > 20
    assert told["compressed"]
    assert 'sp_questions_total{found="task"}' in web.get(f"{server.url}/metrics").text
