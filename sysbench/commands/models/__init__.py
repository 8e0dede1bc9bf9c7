"""List the published models that --model takes by name, with their dimensions, and where these are from."""

from collections.abc import Callable

from sysbench.command import Command


class _Models(Command):
    help = __doc__
    also_called = "catalogue architectures"

    def function(self) -> Callable[..., None]:
        from sysbench.commands.models.command import models

        return models


COMMAND = _Models()
