"""Write up finished runs: findings, tables, pictures, cautions, environment and method."""

from collections.abc import Callable

from sysbench.command import Command


class _Report(Command):
    help = __doc__
    also_called = "html page notebook plot"

    def function(self) -> Callable[..., None]:
        from sysbench.commands.report.command import report

        return report


COMMAND = _Report()
