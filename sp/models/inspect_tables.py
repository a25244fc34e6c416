"""render: what `inspect_file` found, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sp.quant import Repacked

if TYPE_CHECKING:
    from rich.console import RenderableType


def render(info: dict[str, Any]) -> RenderableType:
    """Tables of what `inspect_file` found, for a `rich` console."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(info):
        facts.add_row(name, Text(value))
    types = Table("type", box=None, pad_edge=False, header_style="bold", title_justify="left")
    for name in ("tensors", "size", "share", "decoded by sp"):
        types.add_column(name, justify="right")
    total = sum(row["bytes"] for row in info["tensors_by_type"])
    for row in info["tensors_by_type"]:
        share = f"{row['bytes'] / total:.1%}"
        types.add_row(row["type"], str(row["count"]), _size(row["bytes"]), share, "yes" if row["supported"] else "NO")
    parts: list[RenderableType] = [facts]
    if info["tensors_by_type"]:
        parts += ["", types, *(Text(str(Repacked(**each))) for each in info["repacked"])]
    if info["warnings"]:
        parts += ["", *(Text(f"warning: {warning}", style="yellow") for warning in info["warnings"])]
    return Group(*parts)


def _facts(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of the first table."""
    yield "file", info["path"] + (f" and {info['shards'] - 1} more shards" if info["shards"] > 1 else "")
    yield "size", f"{_size(info['bytes'])} ({info['bytes']:,} bytes), GGUF v{info['version']}"
    for digest in info["sha256"] or ():
        yield "sha256", digest
    yield "model", " · ".join(filter(None, (info["architecture"], info["name"], info["file_type"]))) or "unknown"
    yield "parameters", f"{_thousands(info['parameters'])} in {info['tensors']} tensors"
    labels = ("layers", "hidden", "heads", "kv_heads", "head_dim", "context")
    known = [f"{name} {info[name]}" for name in labels if info[name] is not None]
    if known:
        yield "shape", " · ".join(known)
    tokenizer = info["tokenizer"]
    if tokenizer is not None:
        shown = [f"{name} {value}" for name, value in tokenizer.items() if value is not None and name != "sha256"]
        yield "tokenizer", " · ".join(shown)
    template = info["chat_template"]
    if template["present"]:
        yield "template", f"{template['chars']} characters, sha256 {template['sha256'][:12]}: {template['first_line']}"


def _size(count: int) -> str:
    """Bytes in binary units.

    >>> _size(16_536_406_016)
    '15.40 GiB'
    """
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.2f} {unit}"
    return f"{size / 1024:.2f} TiB"


def _thousands(count: int) -> str:
    """A count in the units models are named by.

    >>> _thousands(26_895_998_464), _thousands(596_049_920)
    ('26.90 B', '596.0 M')
    """
    if count >= 10**9:
        return f"{count / 10**9:.2f} B"
    return f"{count / 10**6:.1f} M" if count >= 10**6 else f"{count:,}"
