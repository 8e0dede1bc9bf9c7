"""`sysbench run`: options → experiment → plan → its runs, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sysbench.commands import running
from sysbench.commands.run.spec import ExperimentOptions, Overrides, by_long_name
from sysbench.errors import UsageError
from sysbench.spec.command_options import Given, command_options, validated

if TYPE_CHECKING:
    from sysbench.commands.run.experiment import PlannedRun
    from sysbench.commands.run.experiment_file import WrittenExperiment


@command_options(ExperimentOptions, Overrides)
def run(options_given: Given, overrides_given: Given) -> None:
    """Run an experiment: several of these commands, as one file says them, into one directory.

    Without a name, what ships is listed. Options of its runs can be given here in their stead: --size small --ctx 128
    """
    options = validated(ExperimentOptions, options_given)
    overrides = by_long_name(overrides_given)
    if options.json_path not in (None, "-"):
        from sysbench.log.storage import refuse_unwritable

        refuse_unwritable(Path(str(options.json_path)))
    if options.listed or (options.experiment is None and options.resume is None):
        _list(options, overrides)
        return
    if options.resume is not None:
        from sysbench.commands.run import runs as experiment_runs

        raise typer.Exit(experiment_runs.continued(options.resume, options, overrides, _planned))
    from sysbench.commands.run import experiment_file

    experiment = experiment_file.load(options.experiment or "")
    planned = _planned(experiment, overrides)
    if options.plan:
        _show_plan(experiment, planned, options)
        return
    from sysbench.commands.run import runs as experiment_runs

    raise typer.Exit(experiment_runs.begun(experiment, planned, options, overrides))


def _list(options: ExperimentOptions, overrides: dict[str, str]) -> None:
    from sysbench.commands.run import experiment_file
    from sysbench.commands.run import tables as experiment_tables

    if options.experiment is not None:
        raise UsageError(f"--list lists what ships; what {options.experiment} would do, --plan shows")
    if overrides or options.plan:
        given = ", ".join([*(f"--{name}" for name in overrides), *(["--plan"] * options.plan)])
        raise UsageError(f"{given}: name an experiment as well ({', '.join(experiment_file.names())})")
    running.show_sheet(experiment_tables.listing(map(experiment_file.load, experiment_file.names())), options)


def _planned(experiment: WrittenExperiment, overrides: dict[str, str]) -> Sequence[PlannedRun]:
    """The runs as they are on this machine; mistakes are answered before a worker is asked what there is."""
    from sysbench.commands.run.experiment import plan, refuse_mistakes

    refuse_mistakes(experiment, overrides)
    from sysbench.engine.devices import devices_here

    return plan(experiment, overrides, tuple(dict.fromkeys(device.type for device in devices_here())))


def _show_plan(experiment: WrittenExperiment, planned: Sequence[PlannedRun], options: ExperimentOptions) -> None:
    from sysbench.commands.run import tables as experiment_tables

    running.show_sheet(experiment_tables.plan(experiment.title, planned), options)
