"""What a prompt passes from `Pipeline.run` to its first token: files and functions of `sp`, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import FrameType

import sp

ROOT = f"{Path(sp.__file__).parent}/"
MOST_FILES, MOST_FUNCTIONS = 45, 180
"""Held as they are now; 45 and 180 were asked for."""


def passed() -> set[tuple[str, str]]:
    """File and function of every call of the second of two runs; comprehensions and lambdas are parts of theirs."""
    pair = sp.load(device="cpu")
    text = (
        "The sky is blue. " * 60 + "The special magic number for quiet-lantern is 8301947. " + "The sea is wide. " * 60
    )
    prompt = sp.Prompt.from_document(text, "What is the special magic number for quiet-lantern?", pair.target.template)
    options = sp.RunOptions(keep_ratio=0.2, compress="always", max_new_tokens=4)
    pair.run(prompt, options)  # what is made once is made now
    found = set[tuple[str, str]]()

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and not code.co_qualname.endswith(">"):
            found.add((code.co_filename.removeprefix(ROOT), code.co_qualname))

    def first(_: int) -> bool:
        sys.setprofile(None)
        return True

    sys.setprofile(called)
    try:
        pair.run(prompt, options, on_token=first)
    finally:
        sys.setprofile(None)
    return found


def test_a_prompt_passes_few_files_and_functions() -> None:
    # Work of other threads is not seen.
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ROOT).parent)}
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()  # of a process of its own, where no other test has made anything
    files = {line.split()[0] for line in told}
    assert len(files) <= MOST_FILES, done.stdout
    assert len(told) <= MOST_FUNCTIONS, done.stdout


if __name__ == "__main__":
    for line in sorted(f"{file} {name}" for file, name in passed()):
        print(line)
