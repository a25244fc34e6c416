"""Run GPU tests under compute-sanitizer: ``python tests/gpu/sanitize.py [-t memcheck,racecheck] [pytest arguments]``.

Every file of tests runs in a process of its own for each tool. CuPy's memory pool is off: inside a pool an access past
the end of an array is not seen. memcheck finds those and misaligned accesses, racecheck hazards in shared memory,
synccheck wrong barriers, initcheck reads of global memory that nothing wrote. Accesses of the copy engine are seen only
in part.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
OPTIONS = (
    "--error-exitcode=99",
    "--target-processes=application-only",
    "--destroy-on-device-error=context",
    "--check-api-memory-access=no",
    "--print-limit=20",
    "--kernel-name-exclude=kernel_substring=cublas",
)
PYTEST = """
import sys, cupy, pytest
cupy.cuda.set_allocator(None)
cupy.cuda.set_pinned_memory_allocator(None)
sys.exit(pytest.main(sys.argv[1:]))
"""


def sanitizer() -> str:
    """Path of the compute-sanitizer of the CUDA toolkit."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), f"{home}/bin"]))
    if found is None:
        sys.exit("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit (set CUDA_HOME)")
    return found


def main() -> int:
    """Run the chosen tools over the chosen tests; one line each, the log of those that fail."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-t", "--tools", default="memcheck,racecheck", help=f"of {', '.join(TOOLS)}")
    parser.add_argument("tests", nargs="*", help="files of tests; all of tests/gpu if left out")
    given, passed_on = parser.parse_known_args()
    files = given.tests or sorted(str(path) for path in HERE.glob("test_*.py"))
    environment = os.environ | {"CUDA_LAUNCH_BLOCKING": "1", "PYTHONUNBUFFERED": "1"}
    worst = 0
    for tool in given.tools.split(","):
        if tool not in TOOLS:
            parser.error(f"unknown tool {tool!r}; there are {', '.join(TOOLS)}")
        for file in files:
            command = [sanitizer(), f"--tool={tool}", *OPTIONS, sys.executable, "-c", PYTEST]
            start = time.perf_counter()
            done = subprocess.run(
                [*command, "-q", "-p", "no:cacheprovider", file, *passed_on],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            seconds = time.perf_counter() - start
            outcome = "clean" if done.returncode == 0 else f"status {done.returncode}"
            print(f"{tool:<10} {file}: {outcome}, {seconds:.0f} s", flush=True)
            if done.returncode:
                print((done.stdout + done.stderr)[-6000:])
                worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
