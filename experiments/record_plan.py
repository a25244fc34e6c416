"""What `record_all.py` measures, in order of importance: commands, what they leave, and about how long they take.

Seconds are of one NVIDIA H200 with compiled kernels, starting Python and making random weights included.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sp.bench.record import GPU_TESTS, is_current, newest, old_keys

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "gpu"
TABLE = ROOT / "sp" / "ops" / "matmul" / "dispatch_table.json"
TARGET, DRAFTER = ("--synthetic", "qwen3.6-27b"), ("--synthetic", "qwen3-0.6b")
SHARE, SHARES = ("--sparse", "density:0.05"), ("--sparse", "density:0.05,density:0.24")
ALPHAS = "off,alpha:0.02,alpha:0.05,alpha:0.1,alpha:0.2,alpha:0.5"
TRACE = "{scratch}/accepted.json"
TESTS_A_RUN, TEST_SECONDS = 6, 11


@dataclass(frozen=True)
class Want:
    """Records that an item leaves: so many of a benchmark whose configuration has these values."""

    bench: str
    count: int = 1
    keys: Mapping[str, Any] = field(default_factory=dict)

    def there(self, folder: Path) -> int:
        """How many there are of today's kernels, in the folder of a machine."""
        file = folder / f"{self.bench}.jsonl"
        mine = (
            record
            for record in (newest(file) if file.exists() else ())
            if all(record["config"].get(key) == value for key, value in self.keys.items())
        )
        return sum(map(is_current, mine))


@dataclass(frozen=True)
class Item:
    """One command; {results} and {scratch} in it stand for folders. `alone`: nothing else runs meanwhile."""

    name: str
    command: Sequence[str]
    seconds: float
    wants: Sequence[Want] = ()
    alone: bool = False

    def done(self, folder: Path) -> bool:
        """Whether its records are there, of today's kernels; one that leaves none always runs."""
        return bool(self.wants) and all(want.there(folder) >= want.count for want in self.wants)


def sp(*arguments: str) -> tuple[str, ...]:
    """The program of this checkout."""
    return (sys.executable, "-m", "sp.cli", *arguments)


def script(name: str, *arguments: str) -> tuple[str, ...]:
    """One below this folder."""
    return (sys.executable, f"experiments/{name}", *arguments)


def benchmark(name: str) -> tuple[str, ...]:
    """A file of tests/benchmarks."""
    return (sys.executable, "-m", "pytest", "-q", f"tests/benchmarks/{name}.py", "--benchmark-enable")


RECORD = ("--record", "{results}")
OURS = {"engine": "sp", "shape": "qwen3.6-27b", "type": "q4_k_m", "asked_density": None, "math": "bf16"}
EIGHT = OURS | {"math": "int8"}
PAIR = {"target": "qwen3.6-27b-q4_k_m.synthetic", "keep_ratio": 0.05, "math": "bf16"}
MIX, LLAMA = "ud-q4_k_xl", "llama-3.1-70b"
MIXTURE = "qwen3.6-35b-a3b"
MIXED_PAIR = ("--synthetic-target", MIXTURE, "--synthetic-drafter", "qwen3-0.6b")
TURN = ("bench", "turn", "--synthetic-target", "qwen3.6-27b", "--synthetic-drafter", "qwen3-0.6b")
FIRST = (
    Item("build", sp("kernels", "build"), 90, alone=True),
    Item("tune", sp("kernels", "tune", *RECORD), 90, (Want("dispatch", 14),), alone=True),
)
"""Before all else: what is compiled, and the table that decides who multiplies, which is part of every hash."""
MODELS = (
    Item(
        "headline",
        script("ttft_headline.py", "{results}", "--device", "cuda"),
        210,
        (Want("ttft", 3, PAIR | {"density": 0.24}), Want("ttft", 6, PAIR | {"vram": None})),
    ),
    Item("turns", sp(*TURN, *SHARE, *RECORD), 120, (Want("turn", 3, {"vram": None, "kv": "f16"}),)),
    Item(
        "eight bits",
        sp("bench", "model", *TARGET, "-p", "2k,8k,32k,128k", "-n", "0", "--math", "int8", *RECORD),
        110,
        (*(Want("prefill", 1, EIGHT | {"prompt_tokens": n}) for n in (2048, 8192, 32768, 131072)),),
    ),
    Item(
        "eight bits, portable",
        sp("bench", "model", *TARGET, "-p", "8k", "-n", "0", "--math", "int8", "--path", "portable", *RECORD),
        20,
        (Want("prefill", 1, EIGHT | {"path": "portable"}),),
    ),
    Item(
        "eight bits, fp8",
        sp("bench", "model", *TARGET, "-p", "8k", "-n", "0", "--math", "fp8", *RECORD),
        20,
        (Want("prefill", 1, EIGHT | {"math": "fp8"}),),
    ),
    Item(
        "eight bits, first token",
        sp(
            *("bench", "ttft", "--synthetic-target", "qwen3.6-27b", "--synthetic-drafter", "qwen3-0.6b", "-p", "128k"),
            *(*SHARES, "--full-repeats", "1", "--math", "int8", *RECORD),
        ),
        80,
        (Want("ttft", 2, PAIR | {"math": "int8"}),),
    ),
    Item(
        "eight bits, drafter",
        sp("bench", "drafter", *DRAFTER, "-p", "128k", *SHARES, "--math", "int8", *RECORD),
        25,
        (Want("drafter", 2, {"math": "int8", "path": "sm_90a"}),),
    ),
    Item(
        "turns within 23 GiB",
        sp(*TURN, *SHARE, "--vram", "23g", "--keys", "q4_0", "--kv", "q4_0", *RECORD),
        95,
        (Want("turn", 3, {"vram": "23g"}),),
    ),
    Item(
        "prefill and decode",
        sp("bench", "model", *TARGET, "-p", "512,8k,32k", "-n", "64", *RECORD),
        40,
        (
            *(Want("prefill", 1, OURS | {"prompt_tokens": n, "path": "sm_90a"}) for n in (512, 8192, 32768)),
            Want("decode", 1, {"engine": "sp", "context": 0, "draft": None, "type": "q4_k_m", "shape": "qwen3.6-27b"}),
        ),
    ),
    Item(
        "dynamic mix",
        sp("bench", "model", *TARGET, "--type", MIX, "-p", "512,8k", "-n", "64", *RECORD),
        25,
        (Want("prefill", 2, {"type": MIX}), Want("decode", 1, {"type": MIX})),
    ),
    Item(
        "Llama 70B",
        sp("bench", "model", "--synthetic", LLAMA, "-p", "8k", "-n", "64", *RECORD),
        30,
        (Want("prefill", 1, {"shape": LLAMA}), Want("decode", 1, {"shape": LLAMA})),
    ),
    Item(
        "Llama 70B, first token",
        sp(
            *("bench", "ttft", "--synthetic-target", LLAMA, "--synthetic-drafter", "llama-3.2-1b"),
            *("-p", "128k", *SHARES, *RECORD),
        ),
        120,
        (Want("ttft", 3, {"target": f"{LLAMA}-q4_k_m.synthetic"}),),
    ),
    Item(
        "mixture",
        sp("bench", "model", "--synthetic", MIXTURE, "-p", "512,8k,32k,128k", "-n", "64", *RECORD),
        35,
        (Want("prefill", 4, {"shape": MIXTURE, "type": "q4_k_m"}), Want("decode", 1, {"shape": MIXTURE})),
    ),
    Item(
        "mixture, first token",
        sp("bench", "ttft", *MIXED_PAIR, "-p", "128k", *SHARES, "--vram", "none,23g", *RECORD),
        60,
        (Want("ttft", 4, {"target": f"{MIXTURE}-q4_k_m.synthetic", "prompt_tokens": 131072}),),
    ),
    Item(
        "mixture within 11 GiB",
        sp("bench", "ttft", *MIXED_PAIR, "-p", "32k,128k", *SHARE, "--vram", "11g", "-r", "3", *RECORD),
        35,
        (Want("ttft", 2, {"target": f"{MIXTURE}-q4_k_m.synthetic", "vram": "11g"}),),
    ),
    Item(
        "mixture, dynamic mix",
        sp("bench", "model", "--synthetic", MIXTURE, "--type", MIX, "-p", "8k,128k", "-n", "64", *RECORD),
        30,
        (Want("prefill", 2, {"shape": MIXTURE, "type": MIX}),),
    ),
    Item(
        "mixture, rounds and simulated decoding",
        sp(
            *("bench", "decode", "--synthetic", MIXTURE, "--accept", "4,8", "-p", "2k", "-r", "3"),
            *("--budgets", "8,15,22", "--nodes", "16,32,64", *RECORD),
        ),
        45,
        (Want("verify", 3, {"shape": MIXTURE}),),
    ),
    Item(
        "mixture, turns",
        sp("bench", "turn", *MIXED_PAIR, *SHARE, *RECORD),
        40,
        (Want("turn", 3, {"target": f"{MIXTURE}-q4_k_m.synthetic"}),),
    ),
    Item(
        "prefill 128K",
        sp("bench", "model", *TARGET, "-p", "128k", "-n", "0", *RECORD),
        95,
        (Want("prefill", 1, OURS | {"prompt_tokens": 131072}),),
    ),
    Item(
        "drafter",
        sp("bench", "drafter", *DRAFTER, "-p", "8k,32k,64k,128k,256k", *SHARES, *RECORD),
        45,
        (Want("drafter", 10, {"tokens": "random", "path": "sm_90a"}),),
    ),
    Item(
        "rounds and simulated decoding",
        sp(
            *("bench", "decode", *TARGET, "--simulate", TRACE, "--accept", "4,8", "-p", "2k", "-r", "5"),
            *("--budgets", "4,8,15,22,32,63", "--nodes", "16,23,32,48,64", *RECORD),
        ),
        130,
        (Want("verify", 5), Want("decode", 25, {"mode": "simulated acceptance"})),
    ),
    Item("products", benchmark("test_bench_matmul"), 100, (Want("matmul", 471),)),
    Item(
        "prefill, portable",
        sp("bench", "model", *TARGET, "-p", "8k", "-n", "0", "--path", "portable", *RECORD),
        25,
        (Want("prefill", 1, OURS | {"path": "portable"}),),
    ),
    Item(
        "prefill, sparse",
        sp("bench", "model", *TARGET, "-p", "32k", "-n", "0", *SHARE, *RECORD),
        30,
        (Want("prefill", 1, {"asked_density": 0.05}),),
    ),
)
KERNELS = (
    Item(
        "attention",
        benchmark("test_bench_attention"),
        90,
        (Want("attention", 18), Want("attention_chunk", 6), Want("attention_lists", 8)),
    ),
    Item("sparse layers", benchmark("test_bench_flashprefill"), 30, (Want("flashprefill_layer", 18),)),
    Item(
        "real decoding",
        sp("bench", "decode", "-n", "6", "--nodes", "", *RECORD),
        90,
        (Want("decode", 13, {"model": "target.gguf"}),),
    ),
    Item(
        "loading",
        script("load_time.py", "--folder", "/dev/shm", *RECORD),
        60,
        (Want("load", 1, {"mode": "repeated"}),),
    ),
    Item(
        "other requests",
        script("ttft_headline.py", "{results}", "--device", "cuda", "--more"),
        70,
        (Want("ttft", 7, {"keep_ratio": 0.2}),),
    ),
    Item(
        "attention over pages",
        benchmark("test_bench_attention_paged"),
        25,
        (Want("attention_few", 40), Want("kv_unpack", 2), Want("attention", 4, {"path": "portable"})),
    ),
    Item(
        "recurrence, rows, tokens",
        benchmark("test_bench_delta"),
        20,
        (Want("delta_mixer", 9), Want("elementwise", 2), Want("sample", 4)),
    ),
    Item("products of decoding", benchmark("test_bench_decode_matmul"), 40, (Want("decode_matmul", 60),)),
    Item(
        "drafter on text",
        sp("bench", "drafter", "-p", "8k,16k,32k,64k,128k", "--sparse", ALPHAS, *RECORD),
        25,
        (Want("drafter", 30, {"tokens": "text"}),),
    ),
    Item(
        "drafter, portable",
        sp("bench", "drafter", *DRAFTER, "-p", "128k", *SHARE, "--path", "portable", *RECORD),
        20,
        (Want("drafter", 1, {"path": "portable"}),),
    ),
    *(
        Item(f"family {name}", sp("kernels", "bench", "--family", name, *RECORD), seconds, (Want(name, count),))
        for name, seconds, count in (
            ("project", 25, 49), ("experts", 10, 39), ("paged_attention", 15, 6), ("delta", 12, 6),
            ("delta_tree", 15, 5), ("flashprefill", 30, 30), ("matmul_bytes", 20, 26), ("byte_attention", 20, 10),
            ("importance", 12, 6), ("memory", 10, 1), ("rows", 10, 4),
        )
    ),
    Item(
        "server",
        script(
            *("serve_load.py", "{results}", "--device", "cuda"),
            *("--characters", "2000,26000,420000", "--requests", "15"),
        ),
        40,
        (Want("serve_load", 4),),
    ),
)  # fmt: skip


def tests(folder: Path) -> list[Item]:
    """Files of GPU tests without a record of today's kernels, a few a run."""
    names = old_keys(folder / f"{GPU_TESTS}.jsonl", TESTS)
    return [
        Item(
            f"tests {', '.join(name.removeprefix('test_').removesuffix('.py') for name in part)}",
            (sys.executable, "-m", "pytest", "-q", *(f"tests/gpu/{name}" for name in part), *RECORD),
            TEST_SECONDS * len(part),
            tuple(Want(GPU_TESTS, 1, {"tests": [name]}) for name in part),
        )
        for part in (names[start : start + TESTS_A_RUN] for start in range(0, len(names), TESTS_A_RUN))
    ]


def peer(program: str, file: str) -> list[Item]:
    """llama.cpp on a file of the 27B shapes, if its program is there."""
    lengths = ("-p", "8k,32k", "-n", "64", "-b", "2048,8192", "-ub", "512,2048", "-r", "3")
    command = sp("bench", "llama-cpp", "--llama-bench", program, "-m", file, *lengths, *RECORD)
    return [Item("llama.cpp", command, 330, (Want("prefill", 8, {"engine": "llama.cpp"}),))] if program else []


def plan(folder: Path, together: Sequence[Item] = ()) -> list[Item]:
    """All items, the most important first; `together` are those of several cards."""
    return [*FIRST, *together, *MODELS, *tests(folder), *KERNELS]
