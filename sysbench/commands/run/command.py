"""`sysbench run`: parse the options, load an experiment, plan its runs, and carry them out in sequence."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sysbench.commands import showing
from sysbench.commands.prediction_checks import refuse_unpredictable
from sysbench.commands.run.spec import ExperimentOptions, Overrides, by_long_name
from sysbench.errors import UsageError
from sysbench.spec.command_options import Given, command_options, validated

if TYPE_CHECKING:
    from sysbench.commands.run.experiment import PlannedRun
    from sysbench.commands.run.experiment_file import WrittenExperiment
    from sysbench.log.durations import Durations
    from sysbench.spec.hardware import Hardware


@command_options(ExperimentOptions, Overrides)
def run(options_given: Given, overrides_given: Given) -> None:
    """Run an experiment: several sysbench commands listed in one file, with results in one directory.

    Without a name, lists the built-in experiments. Options given here override those of its runs: --size small
    """
    options = validated(ExperimentOptions, options_given)
    overrides = by_long_name(overrides_given)
    if options.json_path not in (None, "-"):
        from sysbench.log.storage import refuse_unwritable

        refuse_unwritable(Path(str(options.json_path)))
    if options.experiment is None and options.resume is None:
        _list_experiments(options, overrides)
        return
    with ExitStack() as resources:
        if options.resume is not None:
            from sysbench.commands.run import runs as experiment_runs

            planner = partial(_plan_runs, options, resources)
            raise typer.Exit(experiment_runs.resume_experiment(options.resume, options, overrides, planner))
        from sysbench.commands.run import experiment_file

        experiment = experiment_file.load(options.experiment or "")
        planned, earlier = _plan_runs(options, resources, experiment, overrides, options.plan_for)
        from sysbench.commands.run import runs as experiment_runs

        if options.plan:
            experiment_runs.show_plan(experiment, planned, earlier, options)
            return
        raise typer.Exit(experiment_runs.run_experiment(experiment, planned, options, overrides, earlier))


def _list_experiments(options: ExperimentOptions, overrides: dict[str, str]) -> None:
    from sysbench.commands.run import experiment_file
    from sysbench.commands.run import tables as experiment_tables

    if overrides or options.plan:
        given = ", ".join([*(f"--{name}" for name in overrides), *(["--plan"] * options.plan)])
        raise UsageError(f"{given} also needs the name of an experiment ({', '.join(experiment_file.names())})")
    showing.show_sheet(experiment_tables.listing(map(experiment_file.load, experiment_file.names())), options)


def _plan_runs(
    options: ExperimentOptions,
    resources: ExitStack,
    experiment: WrittenExperiment,
    overrides: dict[str, str],
    gpu_name: str | None,
) -> tuple[Sequence[PlannedRun], Durations]:
    from sysbench.commands.run.experiment import plan, refuse_code
    from sysbench.log.durations import Durations, earlier_durations

    if not options.allow_code:
        refuse_code(experiment)
    plan(experiment, overrides, ("cuda",))  # refuses what is invalid on any device, before a worker starts
    from sysbench.engine.process import Launcher, prelaunched

    if gpu_name is not None:
        from sysbench.commands.run import prediction

        gpu, planned = named_gpu(gpu_name), plan(experiment, overrides, ("cuda", "cpu"))
        if not options.plan or options.resume is not None:
            refuse_unpredictable((gpu.slug,), force=options.force, option="--for")
            if not options.plan:
                resources.enter_context(prelaunched(Launcher()))
            return [prediction.to_prediction(each, gpu) for each in planned], Durations()
        earlier = earlier_durations(options.out, gpu.names)
        new = [each for each in planned if any(cell.key not in earlier.cells_s for cell in each.spec.cells())]
        if gpu.rates:
            earlier.predicted_s, earlier.not_predicted = prediction.predict_durations_s(new, gpu, silent=options.quiet)
        return planned, earlier
    resources.enter_context(prelaunched(Launcher()))
    # While the worker imports torch, import the modules that query the worker and carry out the runs.
    from sysbench.commands.run import runs  # noqa: F401
    from sysbench.engine.supervisor import list_devices

    devices = list_devices()
    planned = plan(experiment, overrides, tuple(dict.fromkeys(device.type for device in devices)))
    return planned, earlier_durations(options.out, {device.name for device in devices})


def named_gpu(gpu_name: str) -> Hardware:
    from sysbench.spec import hardware

    try:
        return hardware.by_name(gpu_name)
    except UsageError as error:
        raise UsageError(f"--for {error}") from None
