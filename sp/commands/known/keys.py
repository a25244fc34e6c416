"""The keys of sweep files, from the dataclasses that read them."""

from __future__ import annotations

import dataclasses

from sp.options import Field, fields_of

LISTED = {"decode": "decoder"}
"""Kinds that a list has by another name than a cell."""
COMBINED = (
    Field("grid", "mapping", None, "Keys with a list of values each: every value with every other."),
    Field("zip", "mapping", None, "Keys with lists of one length: first with first, second with second."),
    Field("list", "list", None, "Mappings of keys, one after the other."),
)


def sections() -> dict[str, tuple[str, list[Field]]]:
    """What each part of a file is for, and its keys.

    Examples
    --------
    >>> list(sections())
    ['top', 'pairs', 'tasks', 'cells', 'combinators']
    """
    from sp.pipeline import RunOptions
    from sp.studies.sweep.keys import TaskKeys, TopKeys
    from sp.studies.sweep.pairs import Pair
    from sp.studies.sweep.sweep import CELL_KEYS, COMPRESS, SECTIONS, STRATEGIES

    parts = [Field(name, "mapping | list", None, f"See {name}, below.") for name in SECTIONS]
    parts.append(
        Field("parts", "list", None, "Several such sections, each part with a name, that share what stands here.")
    )
    tasks = [*fields_of(TaskKeys), _options("task", "needle")]
    cells = []
    for field in fields_of(RunOptions):
        if field.name in STRATEGIES:
            _, default = STRATEGIES[field.name]
            told = f"A name of sp list {LISTED.get(field.name, field.name)}s, or a mapping with name and options."
            cells.append(Field(field.name, "text | mapping", default, told))
        elif field.name in CELL_KEYS:
            cells.append(dataclasses.replace(field, default=COMPRESS) if field.name == "compress" else field)
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
