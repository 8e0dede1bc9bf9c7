"""List the known GPUs with memory, peaks and rates, and where each number is from."""

from collections.abc import Callable

from sysbench.command import Command


class _Gpus(Command):
    help = __doc__
    also_called = "gpu devices hardware cards"

    def function(self) -> Callable[..., None]:
        from sysbench.commands.gpus.command import gpus

        return gpus


COMMAND = _Gpus()
