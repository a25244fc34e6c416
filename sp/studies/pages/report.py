"""Write the page of `sp report`: tables and pictures of sweeps, traces of runs, conversations and records of times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib import rc_context

from sp.bench.record import newest
from sp.bench.simulate import SIMULATED
from sp.errors import ConfigError
from sp.evals.trained_for import note_of_records
from sp.json_lines import ATOM, LIST, OBJECT, TEXT, FieldType, check, check_each, number, parse_object, whole
from sp.kernels.machine import machine_slug
from sp.session.measured import check_machine, check_timed, gpus_of
from sp.studies.figures import PictureFormat, picture_markdown, save_figure
from sp.studies.pages.study_page import Section, quality, study_page
from sp.studies.plots.maps import DPI, SavedRun, conversation_figure, importance_map, read_turns
from sp.studies.staging import staged
from sp.studies.sweep.comparable import Comparable, comparable, provenance
from sp.studies.sweep.store import SUFFIXES, Row, raw_lines, read_results, read_rows
from sp.studies.tables.lookup import markdown
from sp.studies.tables.page import fill, marked
from sp.trace import write_atomic

TTFT_CONFIG: Mapping[str, FieldType] = {
    "target": TEXT,
    "kv": TEXT,
    **dict.fromkeys(("drafter", "scorer", "attention", "vram", "path", "engine", "selector", "blocks"), TEXT.optional),
    **{name: number().optional for name in ("alpha", "density")},
    "new_tokens": whole().optional,
}
TTFT: Mapping[str, FieldType] = {
    "stages": OBJECT,
    "error": TEXT.optional,
    **{name: number(0).optional for name in ("first_ttft_s", "cold_ttft_s", "density", "decode_tok_s", "speedup")},
    **{name: whole().optional for name in ("cold_compiled", "kept_tokens", "peak_bytes", "full_runs")},
    "process": ATOM.optional,
}
PAIR: Mapping[str, FieldType] = {"model": TEXT, "draft": TEXT, "context": whole(), "kv": TEXT, "path": TEXT}
DECODE_CONFIG: Mapping[str, FieldType] = {**PAIR, "method": TEXT, "budget": whole(), "mode": TEXT}
LENGTHS = ("acceptance_length", "acceptance_low", "acceptance_high")
DECODE: Mapping[str, FieldType] = {
    **dict.fromkeys((*LENGTHS, "tok_s", "tok_s_low", "tok_s_high", "speedup", "pass_ms", "greedy_tok_s"), number(0)),
    "passes": whole(),
}
REAL: Mapping[str, FieldType] = {"equal": whole(), "answers": whole(), "by_task": OBJECT}
"""Metrics of answers that were compared with greedy ones; simulated acceptance has none."""
BY_TASK: Mapping[str, FieldType] = {**dict.fromkeys(LENGTHS, number(0)), "answers": whole()}
VERIFY_CONFIG: Mapping[str, FieldType] = {**PAIR, "pass": TEXT, "nodes": whole()}
VERIFY: Mapping[str, FieldType] = dict.fromkeys(
    ("ms", "ratio_to_decode", "decode_ms", "draft_ms", "keep_ms", "propose_ms"), number(0)
)


def newest_checked(path: Path) -> list[Row]:
    """Return the last record of every configuration in a file, checked as far as a report shows it.

    ConfigError if the file cannot be read, or a record of a bench in `CHECKS` lacks a field; the message has the
    number of the record among those returned.
    """
    return [checked(record, f"{path}, record {n}") for n, record in enumerate(newest(path), 1)]


def checked(record: Row, where: str) -> Row:
    """Return a record that tables can use, with None for missing optional fields of its configuration."""
    check(record, {"bench": TEXT}, where)
    make = CHECKS.get(record["bench"])
    if make is None:
        return record
    check(record, {"config": OBJECT, "metrics": OBJECT, "samples": LIST}, where)
    check_machine(record, where)
    return make(record, where)


def _ttft(record: Row, where: str) -> Row:
    check_timed(record, where)
    config, metrics = record["config"], record["metrics"]
    check(config, TTFT_CONFIG, f"{where}: config")
    if config["keep_ratio"] < 1:
        check(config, {"scorer": TEXT}, f"{where}: config")
    check(metrics, TTFT, f"{where}: metrics")
    check_each(metrics["stages"], number(0), f"{where}: stages")
    return {**record, "config": {**dict.fromkeys(TTFT_CONFIG), **config}, "metrics": {"ttft_s": None, **metrics}}


def _decode(record: Row, where: str) -> Row:
    config, metrics = record["config"], record["metrics"]
    if "mode" not in config:
        return record
    check(config, {**DECODE_CONFIG, **({"acceptance": TEXT} if "acceptance" in config else {})}, f"{where}: config")
    check(metrics, DECODE, f"{where}: metrics")
    if config["mode"] != SIMULATED:
        check(metrics, REAL, f"{where}: metrics")
    by_task = metrics.get("by_task", {})
    check({"by_task": by_task}, {"by_task": OBJECT}, f"{where}: metrics")
    check_each(by_task, OBJECT, f"{where}: by_task")
    for measured in by_task.values():
        check(measured, BY_TASK, f"{where}: by_task")
    return record


def _verify(record: Row, where: str) -> Row:
    check(record["config"], VERIFY_CONFIG, f"{where}: config")
    check(record["metrics"], VERIFY, f"{where}: metrics")
    return record


CHECKS: Mapping[str, Callable[[Row, str], Row]] = {"ttft": _ttft, "decode": _decode, "verify": _verify}
"""Checks by benchmark, of those that a report shows."""


SHARED = "Times are omitted: the runs shared their devices."


@dataclass
class Sources:
    """Sources of a report by kind.

    `results` are files of `sp sweep`, `evals` of `sp eval --out`, `records` of `sp bench`, `conversations` of
    `sp chat --out`; `runs` are folders of `sp run`.
    """

    results: list[Path] = field(default_factory=list)
    evals: list[Path] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)
    conversations: list[Path] = field(default_factory=list)


def find_sources(paths: Iterable[Path]) -> Sources:
    """Sort files by kind, according to their first lines; ConfigError if a path has nothing for a report."""
    sources = Sources()
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES))
            sources.runs += sorted(file.parent for file in path.rglob("trace.json"))
            if not files and not sources.runs:
                raise ConfigError(f"{path} has no results; name a folder of sp sweep, sp bench or sp run")
        elif path.is_file():
            files = [path]
        else:
            raise ConfigError(f"{path} is not a file or folder; name results of sp sweep, sp bench or sp run")
        # Of a folder, files of other kinds are skipped; a file that was named must be of a known kind.
        for file in files:
            fields = first_object(file)
            if "kind" in fields:
                sources.results.append(file)
            elif {"task", "cell", "status"} <= set(fields):
                sources.evals.append(file)
            elif "bench" in fields:
                sources.records.append(file)
            elif {"turn", "spans", "recall"} <= set(fields):
                sources.conversations.append(file)
            elif path.is_file():
                raise ConfigError(
                    f"{path}, line 1: not a result of sp sweep, sp eval or sp chat, nor a record of sp bench; name "
                    "a file of one of these"
                )
    return sources


def first_object(path: Path) -> Row:
    """Return the first object of a JSON-lines file; empty if the first line is no JSON object."""
    try:
        return parse_object(next(raw_lines(path), b""), str(path))
    except ConfigError:
        return {}


@rc_context({"text.parse_math": False})  # a name with dollar signs must not be typeset as a formula
def write_report(paths: Sequence[Path], out: Path, times: bool = True, picture: PictureFormat = "png") -> Path:
    """Write ``report.md``, ``report.html``, ``cells.csv`` and pictures.

    Parameters
    ----------
    paths : sequence of Path
        Files and folders of results.
    out : Path
        Folder of the report; files of an earlier report there are removed.
    times : bool
        Include the times of sweeps. They mean nothing if runs shared a device and so waited for each other.
    picture : {"png", "pdf", "svg"}
        Format of the pictures.

    Returns
    -------
    Path
        The path of ``report.md``.

    Raises
    ------
    ConfigError
        See `find_sources` and `read_results`.
    """
    with staged(out) as stage:
        page = _write_report(paths, stage, times, picture)
    return out / page.name


def _write_report(paths: Sequence[Path], out: Path, times: bool, picture: PictureFormat) -> Path:
    sources = find_sources(paths)
    parts = []
    if sources.results or sources.evals:
        results = read_results(sources.results).checked()
        eval_rows = [row for path in sources.evals for row in read_rows(path)]
        groups = comparable(results)
        if eval_rows:
            groups["Rows of sp eval"] = Comparable(eval_rows)
        if not groups:
            names = ", ".join(map(str, sources.results + sources.evals))
            raise ConfigError(f"{names}: there is no finished run; run sp sweep first")
        source_facts = provenance(results) if results.runs else []
        parts += [markdown(["source", "value"], source_facts, text_columns=2)] if source_facts else []
        parts += [] if times else [SHARED]
        notes = [note_of_records(group.drafters.values()) for group in groups.values()]
        # A note that all groups share is written once above them: nobody would read it below every table.
        shared_note, notes = (notes[0], [""] * len(notes)) if len(set(notes)) == 1 else ("", notes)
        sections = [
            Section(title, group.rows, note) for (title, group), note in zip(groups.items(), notes, strict=True)
        ]
        page_facts = [*source_facts, *([] if times else [("times", SHARED)])]
        write_atomic(out / "report.html", study_page("Report", sections, page_facts, times, note=shared_note).encode())
        parts.append("All strategies on one scale, and a sortable table of all cells: [report.html](report.html).")
        parts += [shared_note] if shared_note else []
        several = len(groups) > 1
        for place, ((title, group), note) in enumerate(zip(groups.items(), notes, strict=True), 1):
            parts += [f"# {title}"] if several else []
            parts += [note] if note else []
            parts += quality(group, out, f"{place}_" if several else "", times, picture)
    for folder in sources.runs:
        run = SavedRun.load(folder)
        if run.has_maps:
            name = f"importance_{folder.name}.{picture}" if len(sources.runs) > 1 else f"importance_heads.{picture}"
            save_figure(importance_map(run), out / name)
            image = picture_markdown("Importance by layer and head", name)
            parts.append(f"## Importance along a prompt\n\n`{folder}`\n\n{image}")
    for place, path in enumerate(sources.conversations, 1):
        name = f"conversation_{place}.{picture}" if len(sources.conversations) > 1 else f"conversation.{picture}"
        save_figure(conversation_figure(read_turns(path)), out / name, DPI)
        image = picture_markdown("Parts of the transcript that each turn read", name)
        parts.append(f"## A conversation\n\n`{path}`\n\n{image}")
    records = [record for path in sources.records for record in newest_checked(path)]
    if timed := [record for record in records if record["bench"] == "ttft"]:
        parts += times_section(timed, out, picture)
    parts += decoding_section(records, out, picture)
    if not parts:
        raise ConfigError(f"{', '.join(map(str, paths))}: nothing for a report; name results of sp sweep or sp bench")
    return write_atomic(out / "report.md", ("# Report\n\n" + "\n\n".join(parts) + "\n").encode())


def times_section(records: Sequence[Row], out: Path, picture: PictureFormat) -> list[str]:
    """Return tables and pictures of times to the first token, by machine and target."""
    from sp.studies.plots.ttft_plots import draw_stages
    from sp.studies.tables.headline import NOTHING, headline
    from sp.studies.tables.ttft_table import cells_of, row_of, title_of

    headline_text = headline(records)
    parts = [f"## Time to the first token of long prompts\n\n{headline_text}"] if headline_text != NOTHING else []
    # Times of different machines, targets or numbers of GPUs do not compare, so each has a table and a picture.
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for record in records:
        key = machine_slug(record), record["config"]["target"], gpus_of(record["config"])[1]
        groups.setdefault(key, []).append(record)
    for place, ((machine, *_), group) in enumerate(sorted(groups.items()), 1):
        name = f"ttft_stages_{place}.{picture}" if len(groups) > 1 else f"ttft_stages.{picture}"
        rows = [row_of(record) for record in group]
        heads, cells, _ = cells_of(rows)
        draw_stages(group, out / name)
        title = f"## Time to the first token, measured alone: {machine}\n\n{title_of(rows)}"
        parts.append(f"{title}\n\n{markdown(heads, cells)}\n\n{picture_markdown('Stages of a request', name)}")
    return parts


def decoding_section(records: Sequence[Row], out: Path, picture: PictureFormat) -> list[str]:
    """Return tables and pictures of decoding with a draft; empty if there are no records."""
    from sp.studies.plots.ttft_plots import draw_decoding
    from sp.studies.tables.decode_table import decode_tables

    parts = [f"{title}\n\n{markdown(heads, cells)}" for title, heads, cells, _ in decode_tables(records)]
    pictures = draw_decoding(records, out, picture) if parts else ()
    parts += [picture_markdown("Decoding by budget", path.name) for path in pictures]
    return ["## Decoding with a draft", *parts] if parts else []


def write_pages(paths: Sequence[Path], pages: Iterable[Path]) -> list[Path]:
    """Fill the generated sections of Markdown pages from the records below `paths`, and return the paths of the pages.

    Of a folder all pages that have marks are filled. All pages are made before the first is written. ConfigError as of
    `fill` and `find_sources`, or if a page cannot be read or no page of a folder has a mark.
    """
    records = [record for path in find_sources(paths).records for record in newest_checked(path)]
    texts: dict[Path, str] = {}
    for page in pages:
        if not page.is_dir():
            texts[page] = _read(page)
            continue
        marked_texts = {file: text for file in sorted(page.rglob("*.md")) if marked(text := _read(file))}
        if not marked_texts:
            raise ConfigError(f"no page below {page} has marks of a generated section; name another in --pages")
        texts |= marked_texts
    filled = {page: fill(text, records) for page, text in texts.items()}
    return [write_atomic(page, text.encode()) for page, text in filled.items()]


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {page}: {error.strerror}; name a page or a folder in --pages") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{page} is not UTF-8 text; name a page of Markdown in --pages") from None
