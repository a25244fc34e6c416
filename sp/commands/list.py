"""`sp list`: what there is to choose from, by name, with options, defaults and where it comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from types import SimpleNamespace
from typing import Annotated, Any

from sp.commands.shell.line import arg, opt
from sp.commands.shell.terminal import AsJson, print_json, text_width
from sp.config import Field, fields_of, summary_of
from sp.errors import unknown_name
from sp.hub import KNOWN, KnownModel, fetched
from sp.plugins import BUILT_IN, loaded_plugins, source_of

LISTED = {"decode": "decoder"}  # kinds that a list has by another name than a cell
COMBINED = (
    Field("grid", "mapping", None, "Keys with a list of values each: every value with every other."),
    Field("zip", "mapping", None, "Keys with lists of one length: first with first, second with second."),
    Field("list", "list", None, "Mappings of keys, one after the other."),
)


def sections() -> dict[str, tuple[str, list[Field]]]:
    """What each part of a file is for, and its keys."""
    from sp.session import RunOptions
    from sp.studies.sweep.keys import TaskKeys, TopKeys
    from sp.studies.sweep.sweep import CELL_KEYS, COMPRESS, SECTIONS, STRATEGIES, Pair

    parts = [Field(name, "mapping | list", None, f"See {name}, below.") for name in SECTIONS]
    parts.append(
        Field("parts", "list", None, "Several such sections, each part with a name, that share what stands here.")
    )
    tasks = [*fields_of(TaskKeys), _options("task", "needle")]
    cells = []
    for one in fields_of(RunOptions):
        if one.name in STRATEGIES:
            _, default = STRATEGIES[one.name]
            told = f"A name of sp list {LISTED.get(one.name, one.name)}s, or a mapping with name and options."
            cells.append(Field(one.name, "text | mapping", default, told))
        elif one.name in CELL_KEYS:
            cells.append(dataclasses.replace(one, default=COMPRESS) if one.name == "compress" else one)
    cells += [_options(kind, default) for kind, (_, default) in STRATEGIES.items()]
    return {
        "top": ("At the top of the file.", [*fields_of(TopKeys), *parts]),
        "pairs": ("Which models; the embedded pair without this section.", fields_of(Pair)),
        "tasks": ("What is asked.", tasks),
        "cells": ("How it is read: every run asks its examples in all cells.", cells),
        "combinators": ("In pairs, tasks and cells, in place of fixed keys; they multiply.", list(COMBINED)),
    }


def _options(kind: str, example: str) -> Field:
    told = f"Any option of it; or {kind}: {{name: {example}, OPTION: VALUE}}. See sp list {LISTED.get(kind, kind)}s."
    return Field(f"{kind}.OPTION", "any", None, told)


MODELS, FAMILIES, PLUGINS, KEYS, OPTIONS = "models", "families", "plugins", "keys", "options"


@dataclass(frozen=True)
class Item:
    """One thing that can be named."""

    name: str
    told: str
    fields: tuple[Field, ...] = ()  # its options
    source: str = BUILT_IN  # `built in`, or the plugin it comes from
    facts: Mapping[str, Any] = field(default_factory=dict)  # what else a record says

    def as_record(self) -> dict[str, Any]:
        """Plain values; the default of an option that must be given is null, of others a text."""
        options = [{key: getattr(one, key) for key in ("name", "type", "default", "told")} for one in self.fields]
        return {"name": self.name, "told": self.told, "fields": options, "source": self.source, **self.facts}


def registries() -> dict[str, Any]:
    """The registries of strategies by the name of their kind."""
    import sp.evals  # noqa: F401  # registers tasks and formats
    from sp.decode import DECODERS
    from sp.evals import TASKS
    from sp.evals.formats.records import FORMATS
    from sp.scoring import SCORERS
    from sp.selection import SELECTORS

    return {f"{one.kind}s": one for one in (SCORERS, SELECTORS, DECODERS, TASKS, FORMATS)}


def kinds() -> list[str]:
    """What can be listed."""
    return [*registries(), MODELS, FAMILIES, PLUGINS, KEYS, OPTIONS]


def items(kind: str) -> list[Item]:
    """All of a kind: strategies, tasks, models and families by name, parts of a sweep file in their order."""
    if kind == MODELS:
        return [_model(model) for model in KNOWN.values()]
    if kind == FAMILIES:
        return _families()
    if kind == PLUGINS:
        return [Item(one.module, one.file or "A module.", source=one.named) for one in loaded_plugins()]
    if kind == KEYS:
        return [Item(part, told, tuple(keys)) for part, (told, keys) in sections().items()]
    if kind == OPTIONS:
        return _options_of_runs()
    from sp.scoring.trained.base import TrainedScorer, shipped

    registry, found = registries()[kind], []
    for name in registry:
        cls = registry.class_of(name)
        told = f"{summary_of(cls)} {shipped(name)}" if issubclass(cls, TrainedScorer) else summary_of(cls)
        found.append(Item(name, told, tuple(fields_of(cls)), source_of(cls)))
    return found


def _options_of_runs() -> list[Item]:
    """The dataclasses that Python, command line, sweeps and server read, and what a request may have in `sp`."""
    from sp.chat import Thinking
    from sp.serve.fields import Choosing
    from sp.serve.options import REQUESTED, Overrides, ServerOptions
    from sp.session import ConversationOptions
    from sp.session.options import ModelOptions, PlaceOptions, RunOptions

    kinds = (ModelOptions, PlaceOptions, RunOptions, Thinking, ConversationOptions, ServerOptions)
    found = [Item(one.__name__, summary_of(one), tuple(fields_of(one))) for one in kinds]
    of_request = [dataclasses.replace(one, default="the server's") for one in REQUESTED.values()]
    found.append(Item("fields of a request", summary_of(Choosing), tuple(fields_of(Choosing))))
    return [*found, Item("sp of a request", summary_of(Overrides), (*of_request, *fields_of(Overrides)[:-1]))]


def _model(model: KnownModel) -> Item:
    """A model that is fetched by name: what it is, its licence, and where it lies if it is here."""
    path = fetched(model)
    where = f"not here; sp get {model.name}" if path is None else f"here: {path}"
    facts = {"path": path and str(path), "bytes": model.nbytes, "licence": model.licence, "sha256": model.sha256}
    return Item(model.name, f"{model.about}; {model.nbytes / 1e6:,.1f} MB, {model.licence}; {where}", facts=facts)


def _families() -> list[Item]:
    """Families of models that run, and the tokenizers that their files come with."""
    from sp.models.families.base import ARCHITECTURES, HOMES

    found = []
    for name, record in sorted(ARCHITECTURES.items()):
        told = f"{record.about or 'told nothing of'}; tokenizers: {', '.join(record.tokenizers)}."
        found.append(Item(name, told, source=source_of(SimpleNamespace(__module__=HOMES[name]))))
    return found


def text_of(found: Sequence[Item], width: int, each: bool) -> str:
    """Names with what they are and their options, with `each` one option after the other. No line is longer than
    `width`, unless a file's path is."""
    return "\n".join(line for item in found for line in _lines(item, width, each))


def _lines(item: Item, width: int, each: bool) -> Iterator[str]:
    head = item.name if item.source == BUILT_IN else f"{item.name}  (from {item.source})"
    yield from [head] if len(head) <= width else [item.name, f"  from {item.source}"]
    yield _filled(item.told, width, 2)
    if not each and item.fields:
        yield _filled(" ".join(one.shown for one in item.fields), width, 4)
    for one in item.fields if each else ():
        yield f"\n  {one.shown}"
        yield _filled(one.type, width, 4)
        if one.told:
            yield _filled(one.told, width, 4)
    if each:
        yield ""


def page_of(title: str, command: str, found: Sequence[Item]) -> str:
    """The same as Markdown, a section an item and a row an option."""
    parts = [f"# {title}\n\nWritten by `{command}`.\n"]
    for item in found:
        source = "" if item.source == BUILT_IN else f" From `{item.source}`."
        parts.append(f"\n## {item.name}\n\n{item.told}{source}\n")
        if item.fields:
            parts.append("\n| name | default | type | |\n|---|---|---|---|\n")
        for one in item.fields:
            default = "" if one.default is None else f"`{one.default}`"
            parts.append(f"| `{one.name}` | {default} | {_cell(one.type)} | {_cell(one.told)} |\n")
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
    name: Annotated[str | None, arg("One of them, to be told of each of its options.")] = None,
    as_page: Annotated[bool, opt("--md", help="Print a page of Markdown instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what can be chosen by name, with options, defaults, and the plugin that what is not built in comes from.

    Examples
    --------
      sp list scorers
      sp list scorers tail
      sp list tasks --plugin mine.py
      sp list models
      sp list keys cells
    """
    if kind is None:
        counts = {one: len(items(one)) for one in kinds()}
        if as_json:
            print_json(counts)
        else:
            print("\n".join(f"sp list {one:<12}{count:>3}" for one, count in counts.items()))
        return
    if kind not in kinds():
        raise unknown_name("kind", kind, kinds())
    found = items(kind)
    if name is not None:
        known, found = [one.name for one in found], [one for one in found if one.name == name]
        if not found:
            raise unknown_name(kind.removesuffix("s"), name, known)
    if as_json:
        print_json({kind: [one.as_record() for one in found]})
    elif as_page:
        title = f"{kind.capitalize()}{' of a sweep file' if kind == KEYS else ''}"
        print(page_of(title, " ".join(["sp list", kind, *([name] if name else []), "--md"]), found), end="")
    else:
        print(text_of(found, text_width(), each=name is not None or kind in (KEYS, OPTIONS)))
