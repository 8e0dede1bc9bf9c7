"""Show what this machine has, what works on it and what does not."""

from collections.abc import Callable

from sysbench.command import Command


class _Doctor(Command):
    help = __doc__
    also_called = "check env info setup diagnose"

    def function(self) -> Callable[..., None]:
        from sysbench.commands.doctor.command import doctor

        return doctor


COMMAND = _Doctor()
