"""Records by layer of one model's file, in JSON that is checked: what a calibration and a map of heads are read by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sp.checked import OBJECT, TEXT, Wanted, check, check_each
from sp.errors import ConfigError, short
from sp.json_lines import read_object

LAYER = re.compile(r"[0-9]{1,4}")


def read_layers(
    path: Path, what: str, schema: str, fields: Mapping[str, Wanted], lists: str, want: Wanted
) -> tuple[dict[str, Any], dict[int, list[Any]]]:
    """Read a record; its fields as the file has them, and one of them, lists by layer, by the layers' numbers.

    `what`: it is, for messages, as in ``"a calibration"``; `fields`: what its other fields must be; `lists`: field that
    is an object: number of a layer to a list; ConfigError: it is missing, something else, or of another schema.

    >>> from tempfile import TemporaryDirectory
    >>> from sp.checked import LIST
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.json"
    ...     _ = path.write_text('{"schema": "x/1", "rows": {"3": [1, 2]}}')
    ...     read_layers(path, "a record", "x/1", {}, "rows", LIST)[1]
    {3: [1, 2]}
    """
    found = read_object(path, what)
    check(found, {"schema": TEXT, **fields, lists: OBJECT}, str(path))
    if found["schema"] != schema:
        raise ConfigError(f"{path}: {what} of schema {short(found['schema'])!r}; this version reads {schema!r}")
    check_each(found[lists], want, f"{path}: {lists}")
    if not found[lists] or not all(LAYER.fullmatch(layer) for layer in found[lists]):
        raise ConfigError(f"{path}: {lists} must have a list for each of some layers, by their numbers")
    return found, {int(layer): row for layer, row in found[lists].items()}
