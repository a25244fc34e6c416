"""The command line: parse, call, print. Errors are one line on stderr and exit status 2."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from sp import __version__
from sp.commands.bench.bench import bench_app
from sp.commands.bench.bench_decode import bench_decode
from sp.commands.bench.bench_drafter import bench_drafter
from sp.commands.bench.bench_llama_cpp import bench_llama_cpp
from sp.commands.bench.bench_ttft import bench_ttft
from sp.commands.bench.bench_turn import bench_turn
from sp.commands.calibrate import calibrate
from sp.commands.chat import chat
from sp.commands.doctor import doctor
from sp.commands.evals import eval_app
from sp.commands.every.options import complete
from sp.commands.heads import heads
from sp.commands.inspect import inspect
from sp.commands.kernels import kernels_app
from sp.commands.list import list_
from sp.commands.plan import plan
from sp.commands.report import report
from sp.commands.run import run
from sp.commands.serve import serve
from sp.commands.sweep import sweep
from sp.commands.synth import synth
from sp.commands.train import train_app
from sp.errors import SpError
from sp.kernels import device_errors

app = typer.Typer(
    name="sp",
    help="Speculative prefill: a small drafter decides which tokens of a long prompt a heavy model reads.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130
UsageError: Any = typer.BadParameter.__bases__[0]
"""What Typer raises for a wrong command line; its module differs between Typer versions."""


app.command()(doctor)
app.command()(heads)
app.command()(calibrate)
app.command()(serve)
app.command()(sweep)
app.command()(report)
app.command()(run)
app.command()(chat)
app.command("list")(list_)
app.command()(inspect)
app.command()(plan)
app.command()(synth)
app.add_typer(kernels_app, name="kernels")
bench_app.command("decode")(bench_decode)
bench_app.command("drafter")(bench_drafter)
bench_app.command("ttft")(bench_ttft)
bench_app.command("turn")(bench_turn)
bench_app.command("llama-cpp")(bench_llama_cpp)
app.add_typer(bench_app, name="bench")
app.add_typer(eval_app, name="eval")
app.add_typer(train_app, name="train")
complete(app)


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Options that belong to no command."""
    if version:
        print(f"sp {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point of the `sp` command."""
    try:
        with device_errors():
            status = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except SpError as error:
        print(f"sp: error: {error}", file=sys.stderr)
        sys.exit(2)
    except UsageError as error:
        print(f"sp: error: {' '.join(error.format_message().split()).rstrip('.')} (see sp --help)", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print(
            "sp: error: out of memory; use a shorter prompt, a lower --keep-ratio or smaller models",
            file=sys.stderr,
        )
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"sp: error: {where}{error.strerror or error}; what was asked for is not complete", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:  # newer versions of Typer catch the interrupt themselves
        print("sp: interrupted", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
