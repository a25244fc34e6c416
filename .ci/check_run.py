"""Run `sp run --json` with keep ratio 0.1 and hold it to its bars: under 60 s, 2 GB, 3x faster, same right answer."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    done = subprocess.run(
        [Path(sys.executable).with_name("sp"), "run", "--keep-ratio", "0.1", "--json", "--out", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"sp run failed with status {done.returncode}: {done.stderr}")
    run = json.loads(done.stdout)
    present = all(Path(path).stat().st_size > 0 for path in run["files"].values())

bars = {
    "files written": present and "plot" in run["files"],
    "under 60 s": seconds < 60,
    "under 2 GB": run["peak_bytes"] < 2e9,
    "compressed": run["activated"] and run["kept_tokens"] <= 0.1 * run["prompt_tokens"] + 1,
    "prompt of about 8K tokens": 7500 <= run["prompt_tokens"] <= 8700,
    "3x faster to the first token": run["speedup"] >= 3,
    "same right answer": run["correct"] and run["answer"] == run["full_answer"],
}
print(
    f"{seconds:.1f} s, {run['peak_bytes'] / 1e6:.0f} MB, first token {run['ttft_s']:.2f} s against "
    f"{run['full_ttft_s']:.2f} s ({run['speedup']:.2f}x), kept {run['kept_tokens']} of {run['prompt_tokens']}, "
    f"answer {run['answer']!r}"
)
missed = [name for name, met in bars.items() if not met]
if missed:
    raise SystemExit(f"missed: {', '.join(missed)}")
