"""The base class of commands that run cells: what they do alike.

Each method imports what it returns, so that `--help` and `--plan` import neither tables nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sysbench.commands.kinds import CommandWithRuns, Launch

if TYPE_CHECKING:
    from sysbench.render.dashboard.screen import CellScreen
    from sysbench.render.table import Sheet
    from sysbench.spec.command_options import Given
    from sysbench.spec.hardware import Hardware


class CellCommand(CommandWithRuns):
    """A command that runs cells, with the options of its spec and its run; a run shows lines while it goes on."""

    runs_in_worker = True

    def function(self) -> Callable[..., None]:
        """Return the function to register with Typer."""
        from sysbench.commands.running import execute
        from sysbench.spec.command_options import command_options

        models = self.models()

        def run(spec_given: Given, options_given: Given) -> None:
            execute(self, spec_given, options_given)

        run.__doc__ = self.help
        return command_options(models.spec, models.options)(run)

    def launch(self) -> Launch[Any, Any, Any]:
        from sysbench.commands.running import perform

        return Launch(perform)

    def plan(self, cells: Sequence[Any], gpu: Hardware | None = None) -> Sheet:
        from sysbench.commands import plan

        return plan.sheet(cells, gpu)

    def screen(self) -> type[CellScreen[Any]]:
        from sysbench.render.dashboard.screen import LinesOnly

        return LinesOnly
