"""Pages made from the program: public names with their docstrings, and every command with its options."""

from importlib import import_module
from pathlib import Path
from shutil import rmtree
from types import GenericAlias

ROOMS = ("sp", "sp.prompt", "sp.scoring", "sp.selection", "sp.session", "sp.evals")
"""Rooms whose `__all__` is for users; what `sp` itself names is not told twice."""


def setup(app):
    """As an extension of Sphinx: the pages are written before any is read."""
    write(Path(app.srcdir) / "reference")
    return {"parallel_read_safe": True}


def write(folder):
    """`api.md` and `commands.md` in `folder`; what is the same already is left alone, so a second build is quick."""
    folder.mkdir(exist_ok=True)
    rmtree(folder / "api", ignore_errors=True)  # pages of names that are no longer there
    pages = {"api": api(), "commands": "\n".join(["# Commands", *commands()])}
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


def commands():
    """Lines of every command, those of a group below its head."""
    from sp import cli

    yield from ["", cli.HEAD]
    for words in sorted(cli.COMMANDS, key=lambda one: (" " in one, one)):
        group, _, name = words.rpartition(" ")
        command = cli.command_of(words)
        if group and name == min(one.split()[1] for one in cli.COMMANDS if one.startswith(f"{group} ")):
            yield from ["", f"## `sp {group}`", "", cli.GROUPS[group]]
        text, examples = command.help_parts
        yield from ["", f"##{'#' * bool(group)} `sp {words}`", "", " ".join(text.split()), ""]
        yield from ["| | | default |", "|---|---|---|"]
        for option in command.options:
            flags = ", ".join(f"`{flag}`" for flag in [*option.flags, *option.switches] or [option.name])
            default = option.default_text and f"`{option.default_text}`"
            yield f"| {flags} | {cell(option.field.description)} | {cell(default)} |"
        if examples:
            yield from ["", "```bash", *examples, "```"]


def cell(text):
    """As one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
