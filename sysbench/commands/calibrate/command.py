"""`sysbench calibrate`: options → spec → run → show, and write the rates where `--simulate` finds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sysbench.commands import refusals, running, showing
from sysbench.commands.calibrate.spec import CalibrateOptions, CalibrateSpec
from sysbench.spec.command_options import Given, command_options

if TYPE_CHECKING:
    from sysbench.commands.calibrate.record import CalibrateRecord


@command_options(CalibrateSpec, CalibrateOptions)
def calibrate(spec_given: Given, options_given: Given) -> None:
    """Measure the device and host rates that predictions are based on.

    Takes about 30 s. Writes the rates to ~/.config/sysbench/hardware/, where --simulate looks first.
    """
    running.execute_command("calibrate", spec_given, options_given)


def show(path: Path, options: CalibrateOptions) -> None:
    """Show a calibration, or rates derived from a timed run or a trace; write the files that `options` name."""
    from sysbench.commands import saved
    from sysbench.commands.calibrate import fold
    from sysbench.commands.calibrate.record import CalibrateRecord
    from sysbench.log import runs
    from sysbench.log.records import typed

    refusals.refuse_unknown_tables("calibrate", options)
    refuse_unwritable(options)
    timed = False
    if not path.is_dir() and not runs.is_log_or_record(path):
        found = fold.of_trace(path)
    elif timed := runs.load(path).kind == "time":
        quietly = options.model_copy(update={"ceilings": False, "shown": False, "source": None})
        found = typed(running.run_cells(CalibrateSpec(timed=path.resolve()), quietly), CalibrateRecord)
    else:
        found = typed(saved.record(path, "calibrate"), CalibrateRecord)
    showing.show_saved(found, options)
    write(found, options)
    if timed:
        raise typer.Exit(running.exit_code(found))


def write(record: CalibrateRecord, options: CalibrateOptions) -> tuple[Path, ...]:
    """Write the rates, and the host's rates to a separate file if `options` name one; return the paths.

    Nothing is written if the run measured nothing. For an earlier run, only the files that `options` name are written.
    """
    if not record.rates or (options.source is not None and options.rates_file is None and options.host is None):
        return ()
    from sysbench.commands.calibrate import hardware_file
    from sysbench.log import storage

    device = hardware_file.with_measured_rates(record)
    path = hardware_file.write(device, options.rates_file)
    saved = [showing.Saved(path, f"--simulate {device.slug}" if options.rates_file is None else "")]
    if options.host is not None:
        storage.write_atomically(options.host, (hardware_file.host_toml(device) + "\n").encode())
        saved.append(showing.Saved(options.host))
    return showing.report_saved(saved, options)


def refuse_unwritable(options: CalibrateOptions) -> None:
    from sysbench.errors import UsageError
    from sysbench.log import storage

    if options.host is not None and options.host.suffix != ".toml":
        raise UsageError(f"--host {options.host} must end in .toml")
    for path in (options.rates_file, options.host):
        if path is not None:
            storage.refuse_unwritable(path)
