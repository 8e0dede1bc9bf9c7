"""Run an experiment: several sysbench commands listed in one file, with results in one directory."""

from collections.abc import Callable

from sysbench.command import Command


class _Run(Command):
    help = __doc__
    also_called = "experiment experiments"

    def function(self) -> Callable[..., None]:
        from sysbench.commands.run.command import run

        return run


COMMAND = _Run()
