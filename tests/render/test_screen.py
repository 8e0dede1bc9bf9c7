"""The layout of the dashboard: which slots a terminal shows, and how high."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from sysbench.render.dashboard.screen import Slot, stacked


def slot(name: str, importance: int, least: int = 1, most: int | None = None, *, gap: bool = False) -> Slot:
    lines = [Text(f"{name}{number}") for number in range(most or least)]
    return Slot(importance, lambda height: lines[:height], least, most or least, gap)


def shown(slots: list[Slot], height: int) -> list[str]:
    return [line.plain for line in stacked(slots, height)]


def test_a_low_terminal_shows_the_most_important_slots_in_their_order() -> None:
    slots = [slot("title", 1), slot("device", 2), slot("progress", 0)]
    assert shown(slots, 3) == ["title0", "device0", "progress0"]
    assert shown(slots, 2) == ["title0", "progress0"]
    assert shown(slots, 1) == ["progress0"]


def test_every_slot_gets_what_it_needs_before_any_gets_more() -> None:
    slots = [slot("board", 0, 1, 5), slot("steps", 1, 2, 4)]
    assert shown(slots, 4) == ["board0", "board1", "steps0", "steps1"]
    assert shown(slots, 8) == ["board0", "board1", "board2", "board3", "board4", "steps0", "steps1", "steps2"]


def test_empty_lines_separate_slots_where_there_is_room() -> None:
    slots = [slot("a", 0), slot("b", 1, gap=True)]
    assert shown(slots, 3) == ["a0", "", "b0"]
    assert shown(slots, 2) == ["a0", "b0"]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=8),
    st.integers(1, 40),
)
def test_the_stack_is_never_higher_than_the_terminal(parts: list[tuple[int, int, int, bool]], height: int) -> None:
    slots = [slot(str(at), rank, least, least + more, gap=gap) for at, (rank, least, more, gap) in enumerate(parts)]
    assert len(stacked(slots, height)) <= height
