"""A bounded memory of decisions, by content hash."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Any

ENTRY_BYTES = 512  # that an entry takes besides its value


class DecisionStore:
    """Values by key; the least recently used ones are evicted once all together exceed a number of bytes.

    >>> store = DecisionStore(max_bytes=2000)
    >>> store.put("a", "x" * 1200), store.put("b", "y" * 900), store.get("a") is None
    (None, None, True)
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.nbytes, self.evictions = max_bytes, 0, 0
        self._values: OrderedDict[str, Any] = OrderedDict()
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Any:
        """Return the value of a key, or None, and mark it as used."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: str, value: Any, size: int | None = None) -> None:
        """Store a value of `size` bytes; for a text its own size if left out."""
        self._remove(key)
        size = (len(str(value).encode()) if size is None else size) + ENTRY_BYTES
        self._values[key], self._sizes[key] = value, size
        self.nbytes += size
        # The newest value stays even if it exceeds the bound alone: the request at hand needs it.
        while self.nbytes > self.max_bytes and len(self._values) > 1:
            self._remove(next(iter(self._values)))
            self.evictions += 1

    def _remove(self, key: str) -> None:
        if key in self._values:
            del self._values[key]
            self.nbytes -= self._sizes.pop(key)


def digest(*parts: str) -> str:
    """Hash texts, and where one ends and the next begins."""
    hasher = blake2b(digest_size=20)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        hasher.update(len(raw).to_bytes(8, "little") + raw)
    return hasher.hexdigest()
