"""Give every command `--plugin`, and the options of its help their groups."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from copy import copy
from functools import wraps
from typing import Annotated, Any, get_args, get_origin

import typer

from sp.commands.every.groups import FEW, panel_of
from sp.plugins import find_plugin, load_installed

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|MODULE",
        help="Python file or module with scorers, selectors, tasks, ... of your own; repeatable.",
    ),
]


def complete(app: typer.Typer) -> None:
    """Give every command of an app, groups inside groups included, what all have in common."""
    for info in _commands(app):
        info.callback = _completed(info.callback)


def _commands(app: typer.Typer) -> Iterator[Any]:
    yield from app.registered_commands
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance)


def _completed(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its options in groups, which loads plugins before it begins."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())
    if len(own) > FEW:
        own = [each.replace(annotation=_in_group(each)) for each in own]
    plugin = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)

    @wraps(command)
    def call(**given: Any) -> None:
        named = given.pop("plugin")
        for failed in load_installed():
            print(f"sp: left out: {failed}", file=sys.stderr)
        for text in named or ():
            find_plugin(text).load()
        command(**given)

    call.__signature__ = signature.replace(parameters=[*own, plugin])  # type: ignore[attr-defined]
    return call


def _in_group(parameter: inspect.Parameter) -> Any:
    """The annotation of an option with the panel that its name belongs to, unless it has one."""
    annotation = parameter.annotation
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, told, *rest = get_args(annotation)
    if not isinstance(told, typer.models.OptionInfo) or told.rich_help_panel is not None:
        return annotation
    told = copy(told)
    told.rich_help_panel = panel_of(parameter.name)
    return Annotated[kind, told, *rest]
