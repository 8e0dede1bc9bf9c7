"""List earlier runs, or show one."""

from collections.abc import Callable

from sysbench.command import Command


class _History(Command):
    help = __doc__
    also_called = "runs list ls show results log logs"

    def function(self) -> Callable[..., None]:
        from sysbench.commands.history.command import history

        return history


COMMAND = _History()
