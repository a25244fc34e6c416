"""`report.html` of one run: question, answers, times, the heat of every token and what was kept, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp.page.heat import Heated, Place, strip
from sp.page.markup import Cell, Html, asset, facts, join, page, sortable, tag
from sp.prompt.heat import LEVELS
from sp.session import RunResult

LONGEST = 160
"""Characters of a needle in the list of needles."""
STRIP = "The whole prompt: importance above, share kept in the middle, needles and question below. Press to go there."
STYLE = """
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: .75rem; }
.answers section { border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; }
.answers h2 { margin: 0; font-size: .95rem; } .answer { white-space: pre-wrap; font-size: 1.1rem; margin: .3rem 0; }
.whole .kept { border: 0; }
.took { width: 8rem; } .took svg { display: block; width: 100%; height: .8rem; } .took rect { fill: var(--mark); }
"""


def run_page(result: RunResult, report: Mapping[str, Any], told: Mapping[str, Any], why: str) -> str:
    """The page; everything in it that anybody else wrote is escaped.

    `report`: what `sp run --json` says of it; `told`: what its trace says: ``question``, ``options``, ``target``,
    ``drafter``, ``draft``, ``sp``; `why`: why compression was active, or was not.
    """
    kept = None if result.selection is None else result.selection.kept
    heated = Heated.of(result.prompt, kept, result.scores)
    return page(
        f"sp run: {told.get('question') or 'a prompt'}"[:80],
        tag("main",
            tag("h1", told.get("question") or "A prompt"),
            _answers(result, report),
            tag("p", why, id="why"),
            _figures(report),
            tag("h2", "Tokens"), *_tokens(heated, result),
            tag("h2", "Times"), _times(result),
            tag("h2", "Settings"), _settings(told, report)),
        styles=(asset("heat.css"), STYLE),
        scripts=(asset("heat.js"), asset("sort.js")),
    )  # fmt: skip


def _answers(result: RunResult, report: Mapping[str, Any]) -> Html:
    """The compressed prefill's answer, and that of the full one beside it."""
    shown = [_answer("Full prefill" if result.selection is None else "Compressed", report, "")]
    if result.full is not None and result.full is not result.answer:
        shown.append(_answer("Full prefill", report, "full_"))
    gain = report["speedup"] if len(shown) > 1 else None
    faster = tag("p", tag("b", f"{gain:.1f}x"), " as fast to the first token as the full prefill") if gain else ""
    return join([tag("div", *shown, class_="answers"), faster])


def _answer(title: str, report: Mapping[str, Any], prefix: str) -> Html:
    text, thought, correct = report[f"{prefix}answer"], report[f"{prefix}reasoning"], report["correct"]
    verdict = ""
    if correct is not None and not prefix:
        verdict = tag("span", " right" if correct else " wrong", class_="good" if correct else "bad")
    thinking = tag("details", tag("summary", "Thinking"), tag("pre", thought, class_="answer")) if thought else ""
    seconds = f"first token after {report[f'{prefix}ttft_s']:.2f} s"
    return tag("section", tag("h2", title, verdict), thinking,
               tag("p", text or "(nothing)", class_="answer", dir="auto"), tag("small", seconds))  # fmt: skip


def _figures(report: Mapping[str, Any]) -> Html:
    share = f"{100 * report['keep_ratio']:.1f} %"
    shown: list[tuple[str, object]] = [
        ("Kept", f"{report['kept_tokens']:,} of {report['prompt_tokens']:,} tokens, {share}"),
        ("By constraint", f"{report['forced_tokens']:,} of them, whatever their scores"),
    ]
    if report["needle_recall"] is not None:
        shown.append(("Needle kept", f"{100 * report['needle_recall']:.0f} % of its tokens"))
    if report["acceptance_length"] is not None:
        shown.append(("Decoding", f"{report['acceptance_length']:.2f} tokens a pass of the target"))
    shown.append(("Peak memory", f"{report['peak_bytes'] / 2**20:,.0f} MiB"))
    return facts(shown)


def _tokens(heated: Heated, result: RunResult) -> Sequence[Html]:
    """Strip, where to jump, and all text."""
    places = heated.places()
    parts = [_legend(result), tag("p", STRIP, class_="note"), strip(heated)]
    parts += [_places(heated, places)] if places else []
    parts += [_tools(result), tag("div", heated.markup(), class_="whole" if result.selection is None else None)]
    return parts


def _legend(result: RunResult) -> Html:
    if result.selection is None:
        return tag("p", "All of the prompt was read; nothing was scored.", class_="note")
    levels = join(tag("i", f" {100 * share:g} % ", class_=f"h{level}") for level, share in enumerate(LEVELS, 1))
    kinds = (("kept", "kept"), ("dropped", "left out"), ("question", "question, kept"), ("needle", "needle, kept"),
             ("lost", "needle, left out"))  # fmt: skip
    shown = join(tag("span", name, class_=kind) for kind, name in kinds)
    return tag("p", "More important than ", levels, "of the tokens.", tag("br"), shown, class_="legend")


def _places(heated: Heated, places: Sequence[Place]) -> Html:
    """Links to needles and question, and what became of them."""
    rows = []
    for place in places:
        text = " ".join(heated.text(place.start, place.end)[: 2 * LONGEST].split())
        text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        name = tag("a", place.name.replace("-", " "), href=f"#{place.name}")
        share = f"{100 * place.kept:.0f} %"
        rows.append([Cell(name, place.start), Cell(text, text), Cell(f"{place.start:,}", place.start),
                     Cell(share, place.kept)])  # fmt: skip
    return sortable("Needles and question", ["where", "text", "token", "kept"], rows, ["text"])


def _tools(result: RunResult) -> Html:
    if result.selection is None:
        return Html("")
    return tag("div",
        tag("button", "previous kept piece", type="button", data_step=-1),
        tag("button", "next kept piece", type="button", data_step=1),
        tag("label", tag("input", type="checkbox", id="only"), " only what was kept"),
        tag("label", tag("input", type="checkbox", id="plain"), " without heat"),
        class_="tools",
    )  # fmt: skip


def _times(result: RunResult) -> Html:
    """Stages of both passes, on one scale."""
    passes = [("full" if result.selection is None else "compressed", result.answer)]
    if result.full is not None and result.full is not result.answer:
        passes.append(("full", result.full))
    most = max((stage.seconds for _, answer in passes for stage in answer.trace.stages), default=0) or 1.0
    rows = []
    for label, answer in passes:
        total = answer.trace.seconds or 1.0
        for stage in answer.trace.stages:
            bar = tag("svg", tag("rect", width=f"{100 * stage.seconds / most:.2f}", height=10),
                      viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")  # fmt: skip
            rows.append([
                Cell(label, label), Cell(stage.name, stage.name), Cell(f"{stage.seconds:.3f}", stage.seconds),
                Cell(tag("div", bar, class_="took"), stage.seconds), Cell(f"{stage.tokens:,}", stage.tokens),
                Cell(f"{100 * stage.seconds / total:.1f} %", stage.seconds / total),
            ])  # fmt: skip
    return sortable("Stages", ["pass", "stage", "seconds", "on one scale", "tokens", "share"], rows, ["stage"])


def _settings(told: Mapping[str, Any], report: Mapping[str, Any]) -> Html:
    """Options, models, and what was done to either."""
    shown: list[tuple[str, object]] = [(name, _said(value)) for name, value in told.get("options", {}).items()]
    for role in ("target", "drafter", "draft"):
        described = told.get(role)
        if described:
            inside = facts([(name, _said(value)) for name, value in described.items()])
            shown.append((role, tag("details", tag("summary", described.get("file") or role), inside)))
    for name in (
        "drafter",
        "window",
        "positions",
        "retrieval",
        "dropped",
        "selection",
        "repacked",
        "math",
        "cards",
        "experts",
    ):
        if value := report.get(name):
            shown.append((name, value if isinstance(value, str) else "; ".join(map(str, value))))
    return join([facts(shown), tag("p", f"Written by sp {told.get('sp', '')}", class_="note")])


def _said(value: object) -> str:
    return "none" if value is None else "yes" if value is True else "no" if value is False else str(value)
