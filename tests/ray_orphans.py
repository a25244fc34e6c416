"""Kill `sp serve --replicas` as the kernel does where memory ends, and see that nothing of Ray outlives it for 30 s.

python tests/ray_orphans.py    # a minute; no test runs it
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "SP_ORPHANS"
SECONDS = 30.0


def living(mark: bytes) -> Iterator[str]:
    """Processes with a mark in their environment, those of this one and zombies left out."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if (
                folder.name.isdecimal()
                and int(folder.name) != os.getpid()
                and mark in (folder / "environ").read_bytes()
            ):
                yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]


def main() -> None:
    """Status 1 if something is left."""
    mark = f"{MARK}={os.getpid()}"
    command = (sys.executable, "-m", "sp", "serve", "--device", "cpu", "--port", "0", "--replicas", "2")
    env = {**os.environ, MARK: str(os.getpid())}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        assert any("/v1" in line for line in process.stderr), "it did not start"
        print(f"{len([*living(mark.encode())])} processes")
        process.kill()
        process.wait()
        start = time.monotonic()
        while (left := [*living(mark.encode())]) and time.monotonic() - start < SECONDS:
            time.sleep(1)
    print(f"after {time.monotonic() - start:.0f} s: {left or 'nothing'} is left")
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
