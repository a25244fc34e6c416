"""newest_warm: newest records, but for full prefills whose one sample was the first of its kind in a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sp.bench.record import key_of, newest
from sp.session.measured import cards_of

WARM_SINCE = "2026-11-28T08:50:00+00:00"
"""Since when a full prefill by several cards is timed after one that does not count. Graphs are captured in the first:
128K tokens took four H200 5.8 to 6.0 s then, and 4.1 later, three samples each."""


def newest_warm(path: Path, key: Callable[[Mapping[str, Any]], str] = key_of) -> list[dict[str, Any]]:
    """As `sp.bench.record.newest`; of full prefills by several cards a cold one only where there is no other."""
    found = newest(path, lambda record: f"{key(record)}{' cold' if is_cold(record) else ''}")
    warm = {key(record) for record in found if not is_cold(record)}
    return [record for record in found if not (is_cold(record) and key(record) in warm)]


def is_cold(record: Mapping[str, Any]) -> bool:
    """Whether a full prefill by several cards was timed once, and no one before it.

    >>> config = {"target_cards": 4, "drafter": None}
    >>> record = {"bench": "ttft", "config": config, "samples": [5.9], "date": "2026-11-28T07:25:00+00:00"}
    >>> is_cold(record), is_cold({**record, "samples": [5.9, 4.1, 4.1]}), is_cold({**record, "config": {}})
    (True, False, False)
    """
    alone = cards_of(record["config"])[1] == 1 or record["config"].get("drafter") is not None
    return record["bench"] == "ttft" and not alone and len(record["samples"]) == 1 and record["date"] < WARM_SINCE
