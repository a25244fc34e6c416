"""`sp list`: everything that can be chosen by name, with options, defaults and source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from types import SimpleNamespace
from typing import Annotated, Any

from sp.commands.shell.parser import arg, opt
from sp.commands.shell.terminal import AsJson, print_json, text_width
from sp.config import Field, fields_of, summary_of
from sp.errors import unknown_name
from sp.hub import KNOWN, KnownModel, fetched
from sp.plugins import BUILT_IN, loaded_plugins, source_of

LISTED = {"decode": "decoder"}  # kinds whose name in `sp list` differs from their key in a cell
COMBINED = (
    Field("grid", "mapping", None, "Keys with a list of values each: all combinations."),
    Field("zip", "mapping", None, "Keys with lists of the same length: first with first, second with second."),
    Field("list", "list", None, "List of mappings of keys, used in turn."),
)


def sections() -> dict[str, tuple[str, list[Field]]]:
    """Return each section of a sweep file with its purpose and its keys."""
    from sp.session import RunOptions
    from sp.studies.sweep.keys import TaskKeys, TopKeys
    from sp.studies.sweep.sweep import CELL_KEYS, COMPRESS, SECTIONS, STRATEGIES, Pair

    parts = [Field(name, "mapping | list", None, f"See {name}, below.") for name in SECTIONS]
    parts.append(
        Field("parts", "list", None, "Several sets of these sections, each with a name; the keys above apply to all.")
    )
    tasks = [*fields_of(TaskKeys), _options("task", "needle")]
    cells = []
    for option in fields_of(RunOptions):
        if option.name in STRATEGIES:
            _, default = STRATEGIES[option.name]
            text = f"A name of sp list {LISTED.get(option.name, option.name)}s, or a mapping with name and options."
            cells.append(Field(option.name, "text | mapping", default, text))
        elif option.name in CELL_KEYS:
            cells.append(dataclasses.replace(option, default=COMPRESS) if option.name == "compress" else option)
    cells += [_options(kind, default) for kind, (_, default) in STRATEGIES.items()]
    rule = "Rule of the target's attention: alpha and other options of FlashPrefill, or skip; dense without such a key."
    cells.append(Field("target.OPTION", "any", None, rule))
    return {
        "top": ("At the top of the file.", [*fields_of(TopKeys), *parts]),
        "pairs": ("Models; the embedded pair without this section.", fields_of(Pair)),
        "tasks": ("Tasks that make the examples.", tasks),
        "cells": ("Settings of the pair: every example of a run is answered in every cell.", cells),
        "combinators": ("In pairs, tasks and cells, in place of fixed keys; they multiply.", list(COMBINED)),
    }


def _options(kind: str, example: str) -> Field:
    text = f"Any of its options; or {kind}: {{name: {example}, OPTION: VALUE}}. See sp list {LISTED.get(kind, kind)}s."
    return Field(f"{kind}.OPTION", "any", None, text)


MODELS, FAMILIES, PLUGINS, KEYS, OPTIONS = "models", "families", "plugins", "keys", "options"


@dataclass(frozen=True)
class Item:
    """Describe one named strategy, task, model, family, plugin or section.

    Attributes
    ----------
    name, description : str
    fields : tuple of Field
        Its options.
    source : str
        ``built in``, or the plugin that defines it.
    facts : mapping
        Further keys of its record.
    """

    name: str
    description: str
    fields: tuple[Field, ...] = ()
    source: str = BUILT_IN
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """Return plain values; the default of a required option is None, of others a text."""
        options = [
            {"name": option.name, "type": option.type, "default": option.default, "told": option.description}
            for option in self.fields
        ]
        return {"name": self.name, "told": self.description, "fields": options, "source": self.source, **self.facts}


def registries() -> dict[str, Any]:
    """Return the registries of strategies by the plural of their kind."""
    import sp.evals  # noqa: F401  # registers tasks and formats
    from sp.decode import DECODERS
    from sp.evals import TASKS
    from sp.evals.formats.records import FORMATS
    from sp.scoring import SCORERS
    from sp.selection import SELECTORS

    return {f"{registry.kind}s": registry for registry in (SCORERS, SELECTORS, DECODERS, TASKS, FORMATS)}


def kinds() -> list[str]:
    """Return the kinds that `sp list` takes."""
    return [*registries(), MODELS, FAMILIES, PLUGINS, KEYS, OPTIONS]


def items(kind: str) -> list[Item]:
    """Return all items of a kind: most by name, sections of a sweep file in their order."""
    if kind == MODELS:
        return [_model(model) for model in KNOWN.values()]
    if kind == FAMILIES:
        return _families()
    if kind == PLUGINS:
        return [Item(plugin.module, plugin.file or "A module.", source=plugin.label) for plugin in loaded_plugins()]
    if kind == KEYS:
        return [Item(section, purpose, tuple(keys)) for section, (purpose, keys) in sections().items()]
    if kind == OPTIONS:
        return _options_of_runs()
    from sp.scoring.trained.base import TrainedScorer, shipped

    registry, strategies = registries()[kind], []
    for name in registry:
        cls = registry.class_of(name)
        text = f"{summary_of(cls)} {shipped(name)}" if issubclass(cls, TrainedScorer) else summary_of(cls)
        strategies.append(Item(name, text, tuple(fields_of(cls)), source_of(cls)))
    return strategies


def _options_of_runs() -> list[Item]:
    """Return the option classes that Python, command line, sweeps and server share, and the fields of requests."""
    from sp.chat import Thinking
    from sp.serve.fields import SamplingFields
    from sp.serve.options import REQUESTED, Overrides, ServerOptions
    from sp.session import ConversationOptions
    from sp.session.options import ModelOptions, PlaceOptions, RunOptions

    kinds = (ModelOptions, PlaceOptions, RunOptions, Thinking, ConversationOptions, ServerOptions)
    classes = [Item(cls.__name__, summary_of(cls), tuple(fields_of(cls))) for cls in kinds]
    of_request = [dataclasses.replace(option, default="the server's") for option in REQUESTED.values()]
    classes.append(Item("fields of a request", summary_of(SamplingFields), tuple(fields_of(SamplingFields))))
    return [*classes, Item("sp of a request", summary_of(Overrides), (*of_request, *fields_of(Overrides)[:-1]))]


def _model(model: KnownModel) -> Item:
    """Describe a model that `sp get` fetches: summary, size, licence, and its path if it is downloaded."""
    path = fetched(model)
    where = f"not downloaded; sp get {model.name}" if path is None else f"downloaded: {path}"
    facts = {"path": path and str(path), "bytes": model.nbytes, "licence": model.licence, "sha256": model.sha256}
    return Item(model.name, f"{model.about}; {model.nbytes / 1e6:,.1f} MB, {model.licence}; {where}", facts=facts)


def _families() -> list[Item]:
    """Describe the families of models that run, and the tokenizers of their files."""
    from sp.models.families.base import ARCHITECTURES, HOMES

    families = []
    for name, record in sorted(ARCHITECTURES.items()):
        text = f"{record.about or 'no description'}; tokenizers: {', '.join(record.tokenizers)}."
        families.append(Item(name, text, source=source_of(SimpleNamespace(__module__=HOMES[name]))))
    return families


def text_of(items: Sequence[Item], width: int, in_full: bool) -> str:
    """Format items for a terminal of `width` characters, `in_full` with a description of each option.

    Only paths of files make lines longer.
    """
    return "\n".join(line for item in items for line in _lines(item, width, in_full))


def _lines(item: Item, width: int, in_full: bool) -> Iterator[str]:
    head = item.name if item.source == BUILT_IN else f"{item.name}  (from {item.source})"
    yield from [head] if len(head) <= width else [item.name, f"  from {item.source}"]
    yield _filled(item.description, width, 2)
    if not in_full and item.fields:
        yield _filled(" ".join(option.assignment for option in item.fields), width, 4)
    for option in item.fields if in_full else ():
        yield f"\n  {option.assignment}"
        yield _filled(option.type, width, 4)
        if option.description:
            yield _filled(option.description, width, 4)
    if in_full:
        yield ""


def page_of(title: str, command: str, items: Sequence[Item]) -> str:
    """Format items as Markdown: a section per item, a row per option."""
    parts = [f"# {title}\n\nWritten by `{command}`.\n"]
    for item in items:
        source = "" if item.source == BUILT_IN else f" From `{item.source}`."
        parts.append(f"\n## {item.name}\n\n{item.description}{source}\n")
        if item.fields:
            parts.append("\n| name | default | type | |\n|---|---|---|---|\n")
        for option in item.fields:
            default = "" if option.default is None else f"`{option.default}`"
            parts.append(f"| `{option.name}` | {default} | {_cell(option.type)} | {_cell(option.description)} |\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _filled(text: str, width: int, indent: int) -> str:
    space = " " * indent
    return fill(text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)


def list_(
    kind: Annotated[
        str | None,
        arg("scorers, selectors, decoders, tasks, formats, models, families, plugins, keys (of sweeps), or options."),
    ] = None,
    name: Annotated[str | None, arg("One of them, for a description of each of its options.")] = None,
    as_page: Annotated[bool, opt("--md", help="Print a page of Markdown instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what can be chosen by name, with options, defaults and, for strategies of a plugin, the plugin.

    Examples
    --------
      sp list scorers
      sp list scorers tail
      sp list tasks --plugin mine.py
      sp list models
      sp list keys cells
    """
    if kind is None:
        counts = {kind: len(items(kind)) for kind in kinds()}
        if as_json:
            print_json(counts)
        else:
            print("\n".join(f"sp list {kind:<12}{count:>3}" for kind, count in counts.items()))
        return
    if kind not in kinds():
        raise unknown_name("kind", kind, kinds())
    listing = items(kind)
    if name is not None:
        known, listing = [item.name for item in listing], [item for item in listing if item.name == name]
        if not listing:
            raise unknown_name(kind.removesuffix("s"), name, known)
    if as_json:
        print_json({kind: [item.as_record() for item in listing]})
    elif as_page:
        title = f"{kind.capitalize()}{' of a sweep file' if kind == KEYS else ''}"
        print(page_of(title, " ".join(["sp list", kind, *([name] if name else []), "--md"]), listing), end="")
    else:
        print(text_of(listing, text_width(), in_full=name is not None or kind in (KEYS, OPTIONS)))
