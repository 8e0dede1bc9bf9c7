"""`sysbench doctor`: look → conclude → show."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sysbench.engine.doctor.examination import Examination

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from sysbench.doctor_record import DoctorRecord

# Options are declared here and not in a spec: what reads those takes time to import, which is better spent while torch
# is imported in the other process.


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Write everything as JSON to stdout, and nothing else.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """See what this machine is, what will work on it and why not, and what sysbench itself costs.

    Whatever is missing or broken is said to be unknown, and why. Exits with 1 only where nothing can be measured at
    all, because there is no torch that can be imported.
    """
    with Examination() as examination:
        from sysbench.cli.output import results

        with results() as console:
            record = _examined(examination, None if json else console)
            if json:
                sys.stdout.write(record.model_dump_json(indent=1) + "\n")
    raise typer.Exit(0 if record.torch.devices else 1)


def _examined(examination: Examination, console: Console | None) -> DoctorRecord:
    """Ask, and show on `console` every part as soon as it is known; torch is the last."""
    from datetime import UTC, datetime

    from sysbench.analysis.machine_advice import advice
    from sysbench.analysis.prospects import Facts, prospects
    from sysbench.doctor_record import DoctorRecord
    from sysbench.views import doctor_screen as screen

    def show(*parts: RenderableType) -> None:
        if console is not None:
            for part in parts:
                console.print(part)

    host = examination.host()
    show(screen.heading(host), screen.machine(host))
    tools, allocator, nvml = examination.tools(), examination.allocator(), examination.nvml()
    show(screen.gpus(nvml), screen.tools(tools, allocator))
    with _waiting("importing torch", console):
        torch = examination.torch()
    facts = Facts(host, nvml, torch, tools, allocator)
    outlook, warnings = prospects(facts), advice(facts)
    show(screen.torch(torch), screen.prospects(outlook), *screen.advice(warnings))
    return DoctorRecord(
        at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        host=host,
        nvml=nvml,
        torch=torch,
        tools=tools,
        allocator=allocator,
        prospects=outlook,
        advice=warnings,
    )


@contextmanager
def _waiting(what: str, console: Console | None) -> Iterator[None]:
    """Say on a terminal what is being waited for, and take it back afterwards."""
    if console is None or not (console.is_terminal and sys.stderr.isatty()):
        yield
        return
    from rich.console import Console as Terminal

    with Terminal(stderr=True).status(f" {what}"):
        yield
