"""`sp report`: results of sweeps, traces of runs and records of times, as one page of tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib import rc_context

from sp.bench.record import newest
from sp.bench.simulate import SIMULATED
from sp.errors import ConfigError
from sp.evals.trained_for import note_of_records
from sp.json_lines import ATOM, LIST, OBJECT, TEXT, Wanted, check, check_each, number, parse_object, whole
from sp.kernels.machine import machine_slug
from sp.session.measured import check_machine, check_timed, gpus_of
from sp.studies.figures import PictureFormat, picture_markdown, save_figure
from sp.studies.pages.study_page import Section, quality, study_page
from sp.studies.plots.maps import DPI, SavedRun, conversation_figure, importance_map, read_turns
from sp.studies.sweep.comparable import Comparable, comparable, provenance
from sp.studies.sweep.store import SUFFIXES, Row, raw_lines, read_results, read_rows
from sp.studies.tables.lookup import markdown
from sp.studies.tables.page import fill, marked
from sp.studies.written import staged
from sp.trace import write_atomic

TTFT_CONFIG: Mapping[str, Wanted] = {
    "target": TEXT,
    "kv": TEXT,
    **dict.fromkeys(("drafter", "scorer", "attention", "vram", "path", "engine", "selector", "blocks"), TEXT.optional),
    **{name: number().optional for name in ("alpha", "density")},
    "new_tokens": whole().optional,
}
TTFT: Mapping[str, Wanted] = {
    "stages": OBJECT,
    "error": TEXT.optional,
    **{name: number(0).optional for name in ("first_ttft_s", "cold_ttft_s", "density", "decode_tok_s", "speedup")},
    **{name: whole().optional for name in ("cold_compiled", "kept_tokens", "peak_bytes", "full_runs")},
    "process": ATOM.optional,
}
PAIR: Mapping[str, Wanted] = {"model": TEXT, "draft": TEXT, "context": whole(), "kv": TEXT, "path": TEXT}
DECODE_CONFIG: Mapping[str, Wanted] = {**PAIR, "method": TEXT, "budget": whole(), "mode": TEXT}
LENGTHS = ("acceptance_length", "acceptance_low", "acceptance_high")
DECODE: Mapping[str, Wanted] = {
    **dict.fromkeys((*LENGTHS, "tok_s", "tok_s_low", "tok_s_high", "speedup", "pass_ms", "greedy_tok_s"), number(0)),
    "passes": whole(),
}
REAL: Mapping[str, Wanted] = {"equal": whole(), "answers": whole(), "by_task": OBJECT}
"""Of answers that were compared, task by task; simulated acceptance has none."""
BY_TASK: Mapping[str, Wanted] = {**dict.fromkeys(LENGTHS, number(0)), "answers": whole()}
VERIFY_CONFIG: Mapping[str, Wanted] = {**PAIR, "pass": TEXT, "nodes": whole()}
VERIFY: Mapping[str, Wanted] = dict.fromkeys(
    ("ms", "ratio_to_decode", "decode_ms", "draft_ms", "keep_ms", "propose_ms"), number(0)
)


def newest_checked(path: Path) -> list[Row]:
    """The last record of every configuration in a file, those that a report shows with all it needs of them.
    ConfigError: the file cannot be read, or a record of `CHECKS` lacks something; it is named by its place among
    these."""
    return [checked(record, f"{path}, record {n}") for n, record in enumerate(newest(path), 1)]


def checked(record: Row, where: str) -> Row:
    """A record that tables can use: fields of its configuration that may be missing are null."""
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
"""By benchmark, of those that a report shows."""


SHARED = "Times are left out: the runs shared their devices."


@dataclass
class Sources:
    """What the paths given hold. `results`: files of `sp sweep`; `evals`: files of `sp eval --out`; `records`: files of
    `sp bench`; `runs`: folders of `sp run`; `talks`: files of `sp chat --out`."""

    results: list[Path] = field(default_factory=list)
    evals: list[Path] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)
    talks: list[Path] = field(default_factory=list)


def find_sources(paths: Iterable[Path]) -> Sources:
    """Sort files by what their first line is; folders are searched. ConfigError: a path is missing or holds nothing
    that a report can show."""
    found = Sources()
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.name.endswith(SUFFIXES))
            found.runs += sorted(each.parent for each in path.rglob("trace.json"))
            if not inside and not found.runs:
                raise ConfigError(f"{path} holds no results; name a folder of sp sweep, sp bench or sp run")
        elif path.is_file():
            inside = [path]
        else:
            raise ConfigError(f"{path} is no file or folder; name results of sp sweep, sp bench or sp run")
        for each in inside:
            kind = first_object(each)
            if "kind" in kind:
                found.results.append(each)
            elif {"task", "cell", "status"} <= set(kind):
                found.evals.append(each)
            elif "bench" in kind:
                found.records.append(each)
            elif {"turn", "spans", "recall"} <= set(kind):
                found.talks.append(each)
            elif path.is_file():
                raise ConfigError(
                    f"{path}, line 1: neither results of sp sweep, sp eval or sp chat nor records of sp bench"
                )
    return found


def first_object(path: Path) -> Row:
    """The first line of a JSON-lines file; empty if it is no JSON object."""
    try:
        return parse_object(next(raw_lines(path), b""), str(path))
    except ConfigError:
        return {}


@rc_context({"text.parse_math": False})  # a name with dollars in it is no formula
def write_report(paths: Sequence[Path], out: Path, times: bool = True, picture: PictureFormat = "png") -> Path:
    """Write ``report.md``, ``report.html``, ``cells.csv`` and pictures.

    Parameters
    ----------
    paths : sequence of Path
        Files or folders of results.
    out : Path
        Folder of the report; files of an earlier report there are removed.
    times : bool
        Show the times of sweeps. Omit them where runs shared a device and so waited for each other.
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
            raise ConfigError(f"{names}: no finished run in it; run sp sweep first")
        source_facts = provenance(results) if results.runs else []
        parts += [markdown(["source", "value"], source_facts, left=2)] if source_facts else []
        parts += [] if times else [SHARED]
        notes = [note_of_records(group.drafters.values()) for group in groups.values()]
        # A sentence that all groups share stands once for all of them: under every table, nobody would read it.
        shared_note, notes = (notes[0], [""] * len(notes)) if len(set(notes)) == 1 else ("", notes)
        sections = [
            Section(title, group.rows, note) for (title, group), note in zip(groups.items(), notes, strict=True)
        ]
        page_facts = [*source_facts, *([] if times else [("times", SHARED)])]
        write_atomic(out / "report.html", study_page("Report", sections, page_facts, times, note=shared_note).encode())
        parts.append("Every strategy on one scale, and every cell to sort: [report.html](report.html).")
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
    for place, path in enumerate(sources.talks, 1):
        name = f"conversation_{place}.{picture}" if len(sources.talks) > 1 else f"conversation.{picture}"
        save_figure(conversation_figure(read_turns(path)), out / name, DPI)
        image = picture_markdown("What each turn had of the transcript", name)
        parts.append(f"## A conversation\n\n`{path}`\n\n{image}")
    records = [record for path in sources.records for record in newest_checked(path)]
    if timed := [record for record in records if record["bench"] == "ttft"]:
        parts += times_section(timed, out, picture)
    parts += decoding_section(records, out, picture)
    if not parts:
        raise ConfigError(f"{', '.join(map(str, paths))}: nothing here that a report shows")
    return write_atomic(out / "report.md", ("# Report\n\n" + "\n\n".join(parts) + "\n").encode())


def times_section(records: Sequence[Row], out: Path, picture: PictureFormat) -> list[str]:
    """Return tables and pictures of times to the first token, by machine and target."""
    from sp.studies.plots.ttft_plots import draw_stages
    from sp.studies.tables.headline import NOTHING, headline
    from sp.studies.tables.ttft_table import cells_of, row_of, title_of

    long = headline(records)
    parts = [f"## Time to the first token of long prompts\n\n{long}"] if long != NOTHING else []
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
    """Return tables and pictures of decoding with a draft; an empty list where none is recorded."""
    from sp.studies.plots.ttft_plots import draw_decoding
    from sp.studies.tables.decode_table import decode_tables

    parts = [f"{title}\n\n{markdown(heads, cells)}" for title, heads, cells, _ in decode_tables(records)]
    pictures = draw_decoding(records, out, picture) if parts else ()
    parts += [picture_markdown("Decoding by budget", path.name) for path in pictures]
    return ["## Decoding with a draft", *parts] if parts else []


def write_pages(paths: Sequence[Path], pages: Iterable[Path]) -> list[Path]:
    """Put what records below `paths` say between the marks of Markdown pages, of a folder those that have one, see
    `fill`; the pages written, all made before the first is. ConfigError: see there and `find_sources`; or a page cannot
    be read, or none of a folder has a mark."""
    records = [record for path in find_sources(paths).records for record in newest_checked(path)]
    texts: dict[Path, str] = {}
    for page in pages:
        if not page.is_dir():
            texts[page] = _read(page)
            continue
        inside = {each: text for each in sorted(page.rglob("*.md")) if marked(text := _read(each))}
        if not inside:
            raise ConfigError(f"no page below {page} has marks of a part made from records; name another in --pages")
        texts |= inside
    made = {page: fill(text, records) for page, text in texts.items()}
    return [write_atomic(page, text.encode()) for page, text in made.items()]


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {page}: {error.strerror}; name a page or a folder in --pages") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{page} is no UTF-8 text; name a page of Markdown in --pages") from None
