"""Command line of `sysbench doctor`: examines the machine, and shows each part as soon as it is known."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sysbench.commands.doctor.examination import Examination
from sysbench.render.dashboard.progress import show_status

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from sysbench.commands.doctor.record import DoctorRecord

# Options are declared here and not in a spec, because reading specs requires slow imports, which should happen while
# another process imports torch.


def doctor(
    json: Annotated[
        bool,
        typer.Option(
            "--json", metavar=" ", help="Write everything as JSON: to PATH, or to stdout without other output."
        ),
    ] = False,
    path: Annotated[str, typer.Argument(metavar="[PATH|-]", help="Where --json writes.", show_default=False)] = "",
    debug: Annotated[bool, typer.Option("--debug", metavar=" ", help="Show tracebacks.")] = False,
) -> None:
    """Show what this machine has, what works on it and what does not.

    Values that cannot be determined are unknown, with the reason. Exits with 1 only if nothing can be measured.
    """
    from sysbench.errors import UsageError

    if path and not json:
        raise UsageError(f"{path}: doctor writes a file only with --json {path}")
    if path not in ("", "-"):
        from sysbench.log.storage import refuse_unwritable

        refuse_unwritable(Path(path))
    json_only = json and path in ("", "-")
    code = 0  # also if the reader closes the pipe (`| head`)
    with Examination() as examination:
        from sysbench.render.output import print_json, results

        with results() as console:
            record = _examine(examination, None if json_only else console)
            code = 0 if record.torch.devices else 1
            if json:
                text = record.model_dump_json(indent=1)
                if json_only:
                    print_json(text)
                else:
                    from sysbench.log.storage import write_atomically

                    write_atomically(Path(path), text.encode() + b"\n")
    raise typer.Exit(code)


def _examine(examination: Examination, console: Console | None) -> DoctorRecord:

    from sysbench.commands.doctor import screen
    from sysbench.commands.doctor.advice import advice
    from sysbench.commands.doctor.capabilities import prospects
    from sysbench.commands.doctor.record import DoctorRecord, Machine

    def show(*parts: RenderableType) -> None:
        if console is not None:
            for part in parts:
                console.print(part)

    host = examination.host()
    show(screen.section("machine", host, (host.system.hostname if host.system else "unknown host",)))
    tools, nvml = examination.tools(), examination.nvml()
    show(screen.section("NVIDIA's driver", nvml), screen.section("tools", tools))
    with show_status("importing torch", console):
        torch = examination.torch()
    machine = Machine(host=host, nvml=nvml, torch=torch, tools=tools)
    record = DoctorRecord(
        **dict(machine),
        at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        prospects=prospects(machine),
        advice=advice(machine),
    )
    _keep_context(record)
    show(screen.section("torch", torch), screen.prospects(record.prospects), screen.advice(record.advice))
    return record


def _keep_context(record: DoctorRecord) -> None:
    """Keep the measured size of the CUDA context: `fit`, `check` and simulations count it on this machine."""
    from contextlib import suppress

    from sysbench.errors import OutputError
    from sysbench.log.storage import write_atomically
    from sysbench.spec import hardware

    gpu, torch = record.gpu, record.torch
    if gpu is not None and torch.context_bytes:
        source = f"sysbench doctor, {record.at[:10]}, torch {torch.version}, driver {record.nvml.driver}"
        slug = hardware.slug_of(gpu.name, gpu.memory_bytes)
        with suppress(OutputError, OSError):  # a machine without a writable home is examined all the same
            hardware.contexts_file().parent.mkdir(parents=True, exist_ok=True)
            write_atomically(
                hardware.contexts_file(), hardware.contexts_with(slug, torch.context_bytes, source).encode() + b"\n"
            )
