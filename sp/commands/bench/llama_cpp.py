"""`sp bench llama-cpp`: the user's own llama-bench on the same file, as rows to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from sp.commands.asked import Results
from sp.commands.line import opt
from sp.commands.terminal import progress_bar
from sp.config import Tokens
from sp.errors import ConfigError

MAIN = ("engine", "kv", "batch", "test", "seconds", "tok/s", "best")


def bench_llama_cpp(
    results: Results,
    program: Annotated[Path, opt("--llama-bench", help="llama.cpp's llama-bench program.")],
    model: Annotated[Path, opt("-m", "--model", help="The GGUF file to run it on.")],
    prompts: Annotated[
        tuple[Tokens, ...], opt("-p", "--prompts", help="Prompt lengths, comma-separated; 0 for none.")
    ] = (512,),
    new: Annotated[tuple[Tokens, ...], opt("-n", "--new", help="Decoded tokens, comma-separated; 0 for none.")] = (64,),
    batches: Annotated[
        tuple[Tokens, ...], opt("-b", "--batch", help="Tokens taken at once, comma-separated; llama.cpp's if left out.")
    ] = (),
    ubatches: Annotated[
        tuple[Tokens, ...], opt("-ub", "--ubatch", help="Tokens that go through a layer together, comma-separated.")
    ] = (),
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Samples a test.")] = 5,
    kv: Annotated[str, opt(help="Cached keys and values, as llama.cpp names types.")] = "f16",
    timeout: Annotated[float, opt(least=1, help="Seconds all tests together may take.")] = 3600.0,
) -> None:
    """Time full prefill and decoding of a GGUF file by llama.cpp, on this machine.

    Its rows have the form of `sp bench model`; of several batches all are recorded, and the best of each size is
    marked. llama-bench counts neither tokenising nor sampling.

    Examples
    --------
      sp bench llama-cpp --llama-bench ~/llama.cpp/build/bin/llama-bench -m target.gguf -p 8k,32k -b 2048,8192 \\
      -ub 512,2048 --record results
    """
    from sp.bench.llama_cpp import bench_command, describe_peer, run_bench, with_best
    from sp.bench.record import file_facts, make_record
    from sp.hub import model_path
    from sp.kernels.device import pick_device

    model = model_path(model)
    if not model.is_file():
        raise ConfigError(f"cannot read {model}: no such file; name a GGUF file with -m")
    lengths, decoded, *sizes = ([n for n in given if n] for given in (prompts, new, batches, ubatches))
    if not lengths and not decoded:
        raise ConfigError("nothing to time; give a prompt length with -p or tokens to decode with -n")
    command = bench_command(program, model, lengths, decoded, repeats, kv, *sizes)
    where, facts = pick_device("auto"), file_facts(model)
    with progress_bar("llama-bench", None):
        tests = with_best(run_bench(command, timeout))
    records = [make_record(**describe_peer(test, facts), device=where) for test in tests]
    for made in records:
        results.keep(made)
    rows = [_row(made) for made in records]
    if results.plain(rows, [made["samples"] for made in records]):
        return
    heads = ["engine", "build", "backend", "kv", "batch", "ubatch", "test", "seconds", "tok/s", "runs", "best"]
    cells = [[*("" if row[name] is None else str(row[name]) for name in heads[:7]), f"{row['seconds']:.3f}",
              f"{row['tok_s']:.1f}", str(row["runs"]), "*" if row["best"] else ""] for row in rows]  # fmt: skip
    results.table(heads, cells, 7, MAIN)


def _row(record: dict[str, Any]) -> dict[str, Any]:
    config, metrics = record["config"], record["metrics"]
    decoding = record["bench"] == "decode"
    name = f"tg{config['tokens']}" if decoding else f"pp{config['prompt_tokens']}"
    return {
        "engine": config["engine"],
        "build": config["build"],
        "backend": config["path"],
        "kv": config["kv"],
        "batch": config["batch"],
        "ubatch": config["ubatch"],
        "test": name,
        "seconds": (config["tokens"] if decoding else config["prompt_tokens"]) / metrics["tok_s"],
        "tok_s": metrics["tok_s"],
        "best": metrics["best"],
        "runs": len(record["samples"]),
    }
