"""A few processes that are killed while they write sessions; `kill_sessions` as a script kills as many as are asked."""

from __future__ import annotations

import os
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import kill_sessions


def test_what_the_next_process_finds_was_really_held() -> None:
    # In a process of its own: one that has threads, as this may, is not to be forked.
    command = [sys.executable, kill_sessions.__file__, "8", "5"]
    root = str(Path(kill_sessions.__file__).parents[2])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root}:{root}/tests"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = literal_eval(done.stdout.partition("s ")[2])
    assert told["killed"] >= 6
    assert told["restored"] >= 5
    assert told["turns"] >= 8
