"""Run GPU tests under compute-sanitizer: ``python tests/gpu/sanitize.py [-t memcheck,racecheck] [pytest arguments]``.

Every file of tests runs in a process of its own for each tool. CuPy's memory pool is off: inside a pool an access past
the end of an array is not seen. memcheck finds those and misaligned accesses, racecheck hazards in shared memory,
synccheck wrong barriers, initcheck reads of global memory that nothing wrote. Accesses of the copy engine are seen only
in part. racecheck follows barriers, but not flags that blocks of a cluster release and acquire (gemv_pair.cuh): tests
of those are left out of it; memcheck, and sums of many launches against float64, stand for them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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
LEFT_OUT = dict.fromkeys(TOOLS, "not no_sanitizer") | {"racecheck": "not no_sanitizer and not flags_between_blocks"}
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
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes side by side")
    given, passed_on = parser.parse_known_args()
    tools, files = given.tools.split(","), given.tests or sorted(str(path) for path in HERE.glob("test_*.py"))
    if unknown := sorted(set(tools) - set(TOOLS)):
        parser.error(f"unknown tool {unknown[0]!r}; there are {', '.join(TOOLS)}")
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = [pool.submit(sanitize, tool, file, passed_on) for tool in tools for file in files]
        return max(run.result() for run in runs)


def sanitize(tool: str, file: str, arguments: list[str]) -> int:
    """Run one tool over one file; its exit status."""
    command = [sanitizer(), f"--tool={tool}", *OPTIONS, sys.executable, "-c", PYTEST]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "-q", "-m", LEFT_OUT[tool], "-p", "no:cacheprovider", file, *arguments],
        env=os.environ | {"CUDA_LAUNCH_BLOCKING": "1", "SP_KERNEL_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    last = done.stdout.strip().splitlines()[-1:] or [""]
    outcome = "clean" if done.returncode == 0 else f"status {done.returncode}"
    print(f"{tool:<10} {file}: {outcome}, {seconds:.0f} s; {last[0]}", flush=True)
    if done.returncode:
        print((done.stdout + done.stderr)[-6000:], flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
