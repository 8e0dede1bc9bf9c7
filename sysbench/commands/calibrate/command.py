"""`sysbench calibrate`: options → spec → run → show, and write the rates where `--simulate` finds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands import refusals, running, showing
from sysbench.commands.calibrate.spec import CalibrateOptions, CalibrateSpec
from sysbench.commands.surroundings import ALONE, RunResult, RunSurroundings
from sysbench.errors import UsageError
from sysbench.spec import hardware

if TYPE_CHECKING:
    from sysbench.commands.calibrate.record import CalibrateRecord


def show(path: Path, options: CalibrateOptions) -> None:
    """Show a finished calibration, and write the files that `options` name."""
    from sysbench.commands import saved
    from sysbench.commands.calibrate.record import CalibrateRecord
    from sysbench.log.records import typed

    refusals.refuse_unknown_tables("calibrate", options)
    refuse_unwritable(options)
    found = typed(saved.record(path, "calibrate"), CalibrateRecord)
    _contents(found, options)  # what cannot be written is refused before anything is
    showing.show_saved(found, options)
    write(found, options)


def perform(spec: CalibrateSpec, options: CalibrateOptions, surroundings: RunSurroundings = ALONE) -> RunResult:
    """Run all cells and write the rates; raises UsageError if the host's rates are asked for and not measured."""
    if options.host is not None and "host" not in spec.part:
        raise UsageError(f"--host {options.host} needs the host's rates: add host to the parts")
    return running.perform(spec, options, surroundings)


def write(record: CalibrateRecord, options: CalibrateOptions) -> tuple[Path, ...]:
    """Write the rates, and the host's rates to a separate file if `options` name one; return the paths.

    Nothing is written if the run measured nothing. For an earlier run, only the files that `options` name are written.
    """
    from sysbench.log import storage

    contents = _contents(record, options)
    if options.rates_file is None and options.source is None and contents:
        storage.make_directory(hardware.user_directory())
    saved = []
    for path, content in contents.items():
        storage.write_atomically(path, f"{content}\n".encode())
        named = path in (options.rates_file, options.host)
        saved.append(showing.Saved(path, "" if named else f"--simulate {path.stem}"))
    return showing.report_saved(saved, options)


def _contents(record: CalibrateRecord, options: CalibrateOptions) -> dict[Path, str]:
    """Return what to write to which file; raises UsageError if the host's rates are asked for and were not measured."""
    if not record.rates:
        return {}
    from sysbench.commands.calibrate import hardware_file

    device = hardware_file.with_measured_rates(record)
    contents: dict[Path, str] = {}
    if options.rates_file is not None:
        contents[options.rates_file] = hardware_file.toml(device)
    elif options.source is None:
        contents[hardware.user_directory() / f"{device.slug}.toml"] = hardware_file.toml(device)
    if options.host is not None:
        contents[options.host] = hardware_file.host_toml(device)
    return contents


def refuse_unwritable(options: CalibrateOptions) -> None:
    from sysbench.log import storage

    if options.host is not None and options.host.suffix != ".toml":
        raise UsageError(f"--host {options.host} must end in .toml")
    if options.rates_file is None and options.source is None and not options.plan:
        storage.refuse_uncreatable(hardware.user_directory())
    for path in (options.rates_file, options.host):
        if path is not None:
            storage.refuse_unwritable(path)
