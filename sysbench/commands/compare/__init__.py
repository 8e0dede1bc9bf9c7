"""Tell whether B is faster than A, slower, the same, or too close to call; --ab measures both."""

from collections.abc import Callable

from sysbench.command import Command


class _Compare(Command):
    help = __doc__
    also_called = "diff cmp versus ab"

    def function(self) -> Callable[..., None]:
        from sysbench.commands.compare.command import compare

        return compare


COMMAND = _Compare()
