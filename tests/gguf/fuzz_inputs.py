"""Damage every kind of file that users and strangers write, and read it: so many mutations, from one seed, e.g.

    PYTHONPATH=tests python tests/gguf/fuzz_inputs.py 20000 7
    PYTHONPATH=tests python tests/gguf/fuzz_inputs.py 20000 7 metadata

Each must be read, or be refused by an `SpError` of one printable line of at most 300 characters, within a second of
processor time and 256 MB of memory; see `outcomes`. Exit status 1 if one is not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory

import fuzz_bodies
import fuzz_drafts
import fuzz_formats
import fuzz_metadata
import fuzz_runs
import fuzz_templates
import fuzz_texts
import tokenizer_mutations
from outcomes import Outcomes

KINDS: Mapping[str, tuple[Callable[[int, int], Outcomes], int]] = {
    "metadata": (fuzz_metadata.try_many, 8),
    "tokenizer": (tokenizer_mutations.try_many, 20),
    "bodies": (fuzz_bodies.try_many, 7),
    "template": (fuzz_templates.try_many, 15),
    "formats": (fuzz_formats.try_many, 10),
    "drafts": (fuzz_drafts.try_many, 30),
    "texts": (fuzz_texts.try_many, 9),
    "runs": (fuzz_runs.try_many, 1),
}
"""What tries each kind, and its share of all, in hundredths: keys of GGUF files, vocabularies, chat templates, tensors,
drafts and heads (safetensors with JSON), YAML and JSON with rows of results among it, folders of `sp run`, bodies of
requests."""


def main(count: int, seed: int, only: str = "") -> int:
    """Try them all, or those of one kind, and print what became of them; how many faults there were."""
    faults = tried = 0
    for name, (try_many, share) in KINDS.items():
        if only and only != name:
            continue
        start = time.perf_counter()
        found = try_many(count if only else count * share // 100, seed)
        print(f"{name}, seed {seed}, {time.perf_counter() - start:.0f} s: {found}", flush=True)
        tried, faults = tried + found.tried, faults + found.faults.total()
    print(f"{tried} in all, {faults} faults")
    return faults


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4])))
