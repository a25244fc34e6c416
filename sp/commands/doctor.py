"""`sp doctor`: check that this machine can run on its GPU."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from sp.commands.shell.terminal import AsJson, print_json

MARKS = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}

CPU_SUFFICES = (
    "The GPU cannot be used, which is exit status 2. sp run, chat, serve and eval need none: they run on the CPU."
)


def doctor(as_json: AsJson = False) -> None:
    """Check the GPU, its driver, compiler and headers, and run a short self-test; exit status 2 if it cannot be used.

    Without a GPU, too, the status is 2, so that a script can ask for one. sp run, chat, serve and eval need none.

    Examples
    --------
      sp doctor
    """
    from sp.kernels.tools.doctor import examine, usable

    console, findings = Console(soft_wrap=True, highlight=False), []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            console.print(f"{MARKS[finding.state]} {finding.name:<9} {escape(finding.detail)}")
            if finding.mend:
                console.print(f"{'':14} -> {escape(finding.mend)}")
    fit = usable(findings)
    if as_json:
        print_json({"usable": fit, "findings": [finding._asdict() for finding in findings]})
    if not fit:
        if not as_json:
            console.print(CPU_SUFFICES)
        raise SystemExit(2)
