"""Pages made from the program: public names with their docstrings, and every command with its options."""

import re
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from types import GenericAlias

from typer.main import get_command

ROOMS = ("sp", "sp.prompt", "sp.scoring", "sp.selection", "sp.session", "sp.evals")
"""Rooms whose `__all__` is for users; what `sp` itself names is not told twice."""


def setup(app):
    """As an extension of Sphinx: the pages are written before any is read."""
    write(Path(app.srcdir) / "reference")
    return {"parallel_read_safe": True}


def write(folder):
    """`api.md` and `commands.md` in `folder`; what is the same already is left alone, so a second build is quick."""
    from sp.cli import app

    folder.mkdir(exist_ok=True)
    rmtree(folder / "api", ignore_errors=True)  # pages of names that are no longer there
    pages = {"api": api(), "commands": "\n".join(["# Commands", *commands(get_command(app), "sp")])}
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def api():
    """An autosummary of every room."""
    told, parts = set(), ["# Python\n\nMade from the docstrings of the public names."]
    for room in ROOMS:
        here = import_module(room)
        names = [name for name in here.__all__ if name not in told and has_docstring(getattr(here, name))]
        told |= set(names)
        lines = ["```{eval-rst}", f".. currentmodule:: {room}", "", ".. autosummary::", "   :toctree: api", ""]
        lines += [*(f"   {name}" for name in names), "```"]
        parts.append(f"## `{room}`\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def has_docstring(value):
    """Not of a plain value or an alias of a type, which have those of their class."""
    return callable(value) and not isinstance(value, GenericAlias)


def commands(command, name, depth=1):
    """Lines of a command and of those below it; single ones before groups."""
    text, _, examples = plain(command.help or "").partition("Examples\n")
    yield from ["", f"{'#' * depth} `{name}`", ""] if depth > 1 else [""]
    yield " ".join(text.split())
    if below := getattr(command, "commands", None):
        for each in sorted(below, key=lambda one: (hasattr(below[one], "commands"), one)):
            yield from commands(below[each], f"{name} {each}", depth + 1)
        return
    yield ""
    yield from ["| | | default |", "|---|---|---|"]
    for one in command.params:
        flags = [*one.opts, *one.secondary_opts] if one.opts[0].startswith("-") else [one.name]
        default = one.default() if callable(one.default) else one.default
        shown = "" if default in (None, "", [], ()) or default is ... else f"`{default}`"
        said = cell(getattr(one, "help", None) or "")
        yield f"| {', '.join(f'`{flag}`' for flag in flags)} | {said} | {cell(shown)} |"
    if examples.strip():
        yield from ["", "```bash", *(line.strip() for line in examples.strip().splitlines() if line.strip()), "```"]


def plain(text):
    """Without the marks of Rich."""
    return re.sub(r"\[/?(?:bold|italic|dim)\]", "", text)


def cell(text):
    """As one cell of a table."""
    return " ".join(plain(text).split()).replace("|", "\\|")
