"""`sp list`: what there is to choose from, by name, with options, defaults and where it comes from."""

from __future__ import annotations

from typing import Annotated

from sp.commands.line import arg, opt
from sp.commands.terminal import AsJson, print_json, text_width
from sp.errors import unknown_name


def list_(
    kind: Annotated[
        str | None,
        arg(help="scorers, selectors, decoders, tasks, formats, models, families, plugins, or keys of sweep files."),
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
    from sp.commands.known import shown
    from sp.commands.known.kinds import KEYS, items, kinds

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
        print(shown.as_page(title, " ".join(["sp list", kind, *([name] if name else []), "--md"]), found), end="")
    else:
        print(shown.as_text(found, text_width(), each=name is not None or kind == KEYS))
