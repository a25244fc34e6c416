"""`sp report`: results of sweeps, traces of runs and records of times, as one page of tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib import rc_context

from sp.errors import ConfigError
from sp.evals.trained_for import note_of_records
from sp.json_lines import parse_object
from sp.kernels.machine import machine_slug
from sp.session.measured import cards_of
from sp.studies.figures import save_png
from sp.studies.pages.quality import Comparable, comparable, provenance, quality
from sp.studies.pages.study_page import Section, study_page
from sp.studies.plots.conversation_map import DPI, conversation_figure, read_turns
from sp.studies.plots.importance_map import SavedRun, importance_map
from sp.studies.sweep.store import SUFFIXES, Row, raw_lines, read_results, read_rows
from sp.studies.tables.lookup import markdown
from sp.studies.tables.record_fields import newest_checked
from sp.studies.written import staged
from sp.trace import write_atomic

SHARED = "Times are left out: the runs shared their devices."


@dataclass
class Sources:
    """What the paths given hold.

    `results`: files of `sp sweep`; `evals`: files of `sp eval --out`; `records`: files of `sp bench`; `runs`: folders
    of `sp run`; `talks`: files of `sp chat --out`.
    """

    results: list[Path] = field(default_factory=list)
    evals: list[Path] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)
    talks: list[Path] = field(default_factory=list)


def find_sources(paths: Iterable[Path]) -> Sources:
    """Sort files by what their first line is; folders are searched.

    Raises
    ------
    ConfigError
        A path is missing or holds nothing that a report can show.
    """
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
def write_report(paths: Sequence[Path], out: Path, times: bool = True) -> Path:
    """Write ``report.md``, ``cells.csv`` and pictures into `out`; the path of the page.

    Answers and selections are also in ``report.html``, to look at and to sort. No file of an earlier report stays.
    Without `times`, those of sweeps are left out: runs side by side on one device wait for each other.

    Raises
    ------
    ConfigError
        See `find_sources` and `read_results`.
    """
    with staged(out) as stage:
        page = _write_report(paths, stage, times)
    return out / page.name


def _write_report(paths: Sequence[Path], out: Path, times: bool) -> Path:
    sources = find_sources(paths)
    parts = []
    if sources.results or sources.evals:
        results = read_results(sources.results).checked()
        asked = [row for path in sources.evals for row in read_rows(path)]
        groups = comparable(results)
        if asked:
            groups["Rows of sp eval"] = Comparable(asked)
        if not groups:
            names = ", ".join(map(str, sources.results + sources.evals))
            raise ConfigError(f"{names}: no finished run in it; run sp sweep first")
        told = provenance(results) if results.runs else []
        parts += [markdown(["", ""], told).replace("---:", "---")] if told else []
        parts += [] if times else [SHARED]
        sections = [
            Section(title, group.rows, note_of_records(group.drafters.values())) for title, group in groups.items()
        ]
        html = study_page("Report", sections, [*told, *([] if times else [("times", SHARED)])], times)
        write_atomic(out / "report.html", html.encode())
        parts.append("Every strategy on one scale, and every cell to sort: [report.html](report.html).")
        for number, (title, group) in enumerate(groups.items(), 1):
            several = len(groups) > 1
            parts += [f"# {title}"] if several else []
            parts += quality(group, out, f"{number}_" if several else "", times)
    for folder in sources.runs:
        run = SavedRun.load(folder)
        if run.has_maps:
            name = f"importance_{folder.name}.png" if len(sources.runs) > 1 else "importance_heads.png"
            save_png(importance_map(run), out / name)
            parts.append(f"## Importance along a prompt\n\n`{folder}`\n\n![Importance by layer and head]({name})")
    for number, path in enumerate(sources.talks, 1):
        name = f"conversation_{number}.png" if len(sources.talks) > 1 else "conversation.png"
        save_png(conversation_figure(read_turns(path)), out / name, DPI)
        parts.append(f"## A conversation\n\n`{path}`\n\n![What each turn had of the transcript]({name})")
    if timed := [record for path in sources.records for record in newest_checked(path) if record["bench"] == "ttft"]:
        parts += times_section(timed, out)
    parts += decoding_section([record for path in sources.records for record in newest_checked(path)], out)
    if not parts:
        raise ConfigError(f"{', '.join(map(str, paths))}: nothing here that a report shows")
    return write_atomic(out / "report.md", ("# Report\n\n" + "\n\n".join(parts) + "\n").encode())


def times_section(records: Sequence[Row], out: Path) -> list[str]:
    """Tables and pictures of measured times to the first token, machine by machine and target by target."""
    from sp.studies.plots.ttft_plots import draw_stages
    from sp.studies.tables.headline import NOTHING, headline
    from sp.studies.tables.ttft_table import cells_of, row_of, title_of

    long = headline(records)
    parts = [f"## Time to the first token of long prompts\n\n{long}"] if long != NOTHING else []
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for record in records:
        of = machine_slug(record), record["config"]["target"], cards_of(record["config"])[1]
        groups.setdefault(of, []).append(record)
    for number, ((machine, *_), group) in enumerate(sorted(groups.items()), 1):
        name = f"ttft_stages_{number}.png" if len(groups) > 1 else "ttft_stages.png"
        rows = [row_of(record) for record in group]
        heads, cells, _ = cells_of(rows)
        draw_stages(group, out / name)
        title = f"## Time to the first token, measured alone: {machine}\n\n{title_of(rows)}"
        parts.append(f"{title}\n\n{markdown(heads, cells)}\n\n![Stages of a request]({name})")
    return parts


def decoding_section(records: Sequence[Row], out: Path) -> list[str]:
    """Tables and pictures of decoding with a draft; nothing where none is recorded."""
    from sp.studies.plots.decode_plots import draw_decoding
    from sp.studies.tables.decode_table import decode_tables

    parts = [f"{title}\n\n{markdown(heads, cells)}" for title, heads, cells, _ in decode_tables(records)]
    parts += [f"![Decoding by budget]({path.name})" for path in draw_decoding(records, out)] if parts else []
    return ["## Decoding with a draft", *parts] if parts else []
