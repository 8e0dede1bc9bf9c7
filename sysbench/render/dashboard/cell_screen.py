"""The dashboard of a run with cells: the running cell at the top, finished cells below."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from sysbench import cells as axes
from sysbench.render import theme
from sysbench.render.dashboard.cell_lines import label
from sysbench.render.dashboard.lines import encodable_text, pieces_that_fit
from sysbench.render.dashboard.run_state import RunState

State = TypeVar("State", bound=RunState[Any])

ALWAYS_LABELLED: Final = ("size", "ctx", "precision", "mode")
"""Axes of model cells that are always part of a label, even if all cells agree in them."""

_COUNTER_WIDTH = 24
"""Width of the label next to the title."""


@dataclass(frozen=True)
class CellScreen(ABC, Generic[State]):
    """Layout of a run's dashboard, which never exceeds the size of the terminal."""

    state: State
    now_s: float

    command: ClassVar[str]

    @abstractmethod
    def running_lines(self, width: int, plain: bool) -> list[Text]:
        """Return lines for the current cell, or for the last one if none is running; `plain` omits colours."""

    @abstractmethod
    def outcome_text(self, cell: Any) -> str:
        """Return the outcome of a cell in a few words."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the title, the running cell, and as many of the finished cells as fit."""
        width = max(8, options.max_width - 2)
        height = max(1, options.height or options.size.height)
        plain = console.color_system is None or bool(console.no_color)
        lines = [self._title(width), *self.running_lines(width, plain)]
        spare = height - len(lines) - 3
        if self.state.ended and spare > 0 and len(self.state.planned) > 1:
            lines.append(Text())
            for cell in list(self.state.ended.values())[-spare:]:
                line = Text(f"{label(cell, self.state, ALWAYS_LABELLED)}  ", theme.QUIET)
                lines.append(line.append(self.outcome_text(cell), "" if cell.outcome == "ok" else theme.BAD))
        for line in lines[: height - 1]:
            line.truncate(width, overflow="ellipsis")
            yield Text(" ").append_text(encodable_text(line, options.encoding))

    def _title(self, width: int) -> Text:
        state, now = self.state, self.state.current_cell
        title = Text(f"{self.command}  ", theme.ACCENT)
        if now is not None:
            pieces = [(piece, theme.TITLE) for piece in axes.subject([now.cell.model_dump()])]
            title.append_text(pieces_that_fit(pieces, max(1, width - _COUNTER_WIDTH)))
        count = len(state.planned)
        if count > 1:
            number = min(state.done + (now is None or now.outcome is None), count)
            title.append(f"   cell {number} of {count}", theme.QUIET)
        return title
