"""`sysbench calibrate`: options → spec → run → show, and write the rates where `--simulate` finds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sysbench.commands import running
from sysbench.commands.calibrate.spec import CalibrateOptions, CalibrateSpec
from sysbench.spec.command_options import Given, command_options, validated

if TYPE_CHECKING:
    from sysbench.log.records import RunRecord


@command_options(CalibrateSpec, CalibrateOptions)
def calibrate(spec_given: Given, options_given: Given) -> None:
    """Measure the rates of this device and its host that predicted times rest on.

    About 30 s. The rates go to a file in your own directory, which --simulate prefers to data sheets.
    """
    options: CalibrateOptions = running.options_of("calibrate", options_given)
    running.refuse_unknown_tables("calibrate", options)
    refuse_wrong_files(options)
    if options.source is not None:
        running.refuse_beside_source(CalibrateSpec, spec_given)
        found = _read(options.source, options)
        running.show(found, options)
        if options.rates_file is not None or options.host is not None:
            write(found, options)
        if found.spec.get("timed"):
            raise typer.Exit(running.exit_code(found))
        return
    spec = validated(CalibrateSpec, {**running.resumed("calibrate", options.resume), **spec_given})
    if options.plan:
        running.show_plan(spec, options, None)
        return
    raise typer.Exit(running.exit_code(perform(spec, options).record))


def _read(path: Path, options: CalibrateOptions) -> RunRecord[Any]:
    """What a finished calibration has, or what the steps of another run or a trace show."""
    from sysbench.commands import saved
    from sysbench.commands.calibrate import fold
    from sysbench.log import runs

    if not runs.is_log_or_record(path):
        return fold.of_trace(path)
    if runs.load(path).kind != "time":
        return saved.record(path, "calibrate")
    quietly = options.model_copy(update={"ceilings": False, "shown": False, "source": None})
    return running.carry_out(CalibrateSpec(timed=path.resolve()), quietly)


def perform(spec: CalibrateSpec, options: CalibrateOptions) -> running.Performed:
    """Carry the run out and write its rates; raises as `running.carry_out` does."""
    record = running.carry_out(spec, options.model_copy(update={"ceilings": False}))
    return running.Performed(record, write(record, options))


def write(record: RunRecord[Any], options: CalibrateOptions) -> tuple[Path, ...]:
    """Write the file of rates, and that of the host where one is asked for; returns what there is now.

    Of a run that has measured nothing there is none.
    """
    from sysbench.commands.calibrate import hardware_file
    from sysbench.commands.calibrate.record import CalibrateRecord
    from sysbench.log import storage

    if not isinstance(record, CalibrateRecord) or not record.rates:
        return ()
    device = hardware_file.calibrated(record)
    path = hardware_file.write(device, options.rates_file)
    saved = [running.Saved(path, f"--simulate {device.slug}" if options.rates_file is None else "")]
    if options.host is not None:
        storage.write_atomically(options.host, (hardware_file.host_toml(device) + "\n").encode())
        saved.append(running.Saved(options.host))
    return running.said_to_be_saved(saved, options)


def refuse_wrong_files(options: CalibrateOptions) -> None:
    """Raise UsageError or OutputError for a file of rates that could not be written."""
    from sysbench.errors import UsageError
    from sysbench.log import storage

    if options.host is not None and options.host.suffix != ".toml":
        raise UsageError(f"--host {options.host} must end in .toml")
    for path in (options.rates_file, options.host):
        if path is not None:
            storage.refuse_unwritable(path)
