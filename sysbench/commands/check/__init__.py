"""Read a training config, and say whether it fits, how long a step takes, and which of its lines to change.

Nothing in the file is executed. Exits with 0 if the step fits, 3 if it does not, and 1 if that cannot be told.
"""

from collections.abc import Callable

from sysbench.command import Command


class _Check(Command):
    help = __doc__
    also_called = "config yaml axolotl trainer"

    def function(self) -> Callable[..., None]:
        from sysbench.commands.check.command import check

        return check


COMMAND = _Check()
