"""The page shows what the timeline holds, stays by itself, and does what hands ask of it: in a real browser."""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sysbench import units
from sysbench.commands.memory import page as memory_page
from sysbench.commands.memory.figures import COLOURS, STACKING
from sysbench.errors import OutputError
from sysbench.snapshot import CATEGORIES, snapshot
from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.layout import Frame
from sysbench.snapshot.timeline import Timeline
from tests.render.browser import Browser, browser, missing
from tests.snapshot.event_timelines import Allocated, MemoryEvent, PhaseBegan, Released, from_events
from tests.snapshot.synthetic_snapshots import Model, training_snapshot

needs_browser = pytest.mark.skipif(missing() is not None, reason=missing() or "")

MODEL = Model(layers=4, d_model=256, d_ff=1024, heads=4, vocab=2000, ctx=128)
HOSTILE = "</script><script>window.broken=1</script><img src=x onerror=window.broken=2>{{script}}&amp;'\""


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return from_snapshot(snapshot.of(training_snapshot(MODEL, steps=2)))


@pytest.fixture(scope="module")
def page(timeline: Timeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "memory.html"
    memory_page.write(path, timeline, "tiny · ctx 128 · train")
    return path


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def shown(window: Browser, page: Path) -> Iterator[Browser]:
    window.open(page)
    window.settle()
    yield window
    # Reading pixels back, as tests do, gets a hint about speed.
    assert [line for line in window.complaints() if "willReadFrequently" not in line] == []


# --- what the page is


def unpacked(text: str) -> dict[str, Any]:
    """The data in a page, read as the format says and not as the page does."""
    found = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', text)
    assert found is not None
    content = zlib.decompress(base64.b64decode(found[1]))
    length = int.from_bytes(content[:4], "little")
    header: dict[str, Any] = json.loads(content[4 : 4 + length])
    for name, (kind, offset, count) in header["arrays"].items():
        start = 4 + length + offset
        assert start % 8 == 0
        header[name] = np.frombuffer(content, "<" + kind, count, start)
    return header


def test_the_page_holds_every_allocation_as_it_is(timeline: Timeline, page: Path) -> None:
    held, allocations = unpacked(page.read_text()), timeline.allocations
    columns = ("size", "requested", "born", "died", "category", "address", "freed")
    rows = zip(*(held[name].tolist() for name in columns), strict=True)
    expected = zip(
        *(
            column.tolist()
            for column in (
                allocations.size_bytes,
                allocations.requested_bytes,
                allocations.born,
                allocations.died,
                allocations.category,
                allocations.address,
                allocations.freed_stack,
            )
        ),
        strict=True,
    )
    assert sorted(rows) == sorted(expected)
    assert held["born"].tolist() == sorted(held["born"].tolist())
    assert held["states"] == timeline.states
    assert [row[:3] for row in held["phases"]] == [[phase.name, phase.first, phase.end] for phase in timeline.phases]
    assert timeline.reserved_bytes is not None
    assert held["reserved"].tolist() == timeline.reserved_bytes.tolist()


def test_the_page_refers_to_nothing_outside_itself(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"https?://|//cdn|@import|\bimport\s*\(|\burl\(|<link|<iframe|\bfetch\(|XMLHttpRequest", text)
    assert not re.search(r"<(?:script|img)[^>]*\bsrc\s*=", text)
    assert "default-src 'none'" in text


def test_a_simulated_page_says_so_where_it_cannot_be_overlooked(page: Path) -> None:
    assert (
        "<strong>SIMULATED</strong> for NVIDIA A100-SXM4-80GB. Nothing on this page was measured." in page.read_text()
    )


def test_a_measured_page_does_not_and_tells_what_it_guessed() -> None:
    text = memory_page.render(from_snapshot(snapshot.of(training_snapshot(MODEL, described=False))), "someone's")
    assert 'id="simulated"' not in text
    assert "inferred from stacks and lifetimes" in text


@pytest.mark.parametrize("described", [True, False])
def test_only_a_measured_page_has_times(described: bool) -> None:
    timeline = from_snapshot(snapshot.of(training_snapshot(MODEL, described=described)))
    assert timeline.source == ("simulated" if described else "measured")
    assert ("time" in unpacked(memory_page.render(timeline, "times"))) == (not described)


def test_thirty_bytes_of_the_page_hold_an_allocation() -> None:
    raw = training_snapshot(Model(layers=48, d_model=64, d_ff=64, heads=2, vocab=64, ctx=32), steps=20)
    timeline = from_snapshot(snapshot.of(raw))
    count = len(timeline.allocations)
    assert count > 30_000
    assert len(memory_page.render(timeline, "many")) < 30 * count


def test_a_place_that_cannot_be_written_gets_one_line(timeline: Timeline, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        memory_page.write(tmp_path / "no" / "memory.html", timeline, "tiny")


# --- what a browser makes of it

PLOT = {"left": 86, "right": 14, "top": 22, "bottom": 40}
"""Margins of the plot inside its canvas, in CSS pixels."""


class Plot:
    """Where things are in the plot, worked out from the timeline alone."""

    def __init__(self, window: Browser, timeline: Timeline, stacking: str = "category") -> None:
        self.window, self.timeline, self.stacking = window, timeline, stacking
        x, y, width, height = window.box("#timeline")
        self.x, self.y = x + PLOT["left"], y + PLOT["top"]
        self.width, self.height = width - PLOT["left"] - PLOT["right"], height - PLOT["top"] - PLOT["bottom"]
        self.read_view()

    def read_view(self) -> None:
        told = self.window.run("return document.getElementById('timeline').dataset.view")
        self.x0, self.x1, self.y0, self.y1 = map(float, told.split())

    def state_at(self, x: float) -> int:
        """The state that a column of pixels stands for: the highest of those that share it."""
        columns = round(self.width)
        step = (self.x1 - self.x0) / columns
        column = int(x - self.x)
        first = max(0, min(self.timeline.states - 1, int(self.x0 + column * step)))
        end = min(self.timeline.states, max(first + 1, int(self.x0 + (column + 1) * step)))
        return first + int(np.argmax(self.timeline.allocated_bytes[first:end]))

    def bytes_at(self, y: float) -> float:
        return self.y1 - (y - self.y) / self.height * (self.y1 - self.y0)

    def stack(self, state: int) -> list[tuple[int, float, float]]:
        """(allocation, bottom, top) from the bottom up."""
        allocations = self.timeline.allocations
        rank = {code: place for place, code in enumerate(STACKING)}
        live = self.timeline.live_at(state).tolist()
        if self.stacking == "category":
            live.sort(key=lambda allocation: rank[int(allocations.category[allocation])])
        stacked, offset = [], 0.0
        for allocation in live:
            stacked.append((allocation, offset, offset + float(allocations.size_bytes[allocation])))
            offset = stacked[-1][2]
        return stacked

    def allocation_at(self, x: float, y: float) -> int | None:
        height = self.bytes_at(y)
        return next((a for a, low, high in self.stack(self.state_at(x)) if low <= height < high), None)

    def around(self, x: float, y: float) -> set[int | None]:
        """What lies within two pixels of a point, above and below."""
        return {self.allocation_at(x, y + aside) for aside in (-2, 0, 2)}

    def middle_of(self, allocation: int, share: float = 0.5) -> tuple[float, float]:
        """A point of the window inside an allocation that is on screen."""
        allocations = self.timeline.allocations
        born, died = int(allocations.born[allocation]), int(allocations.died[allocation])
        x = self.x + (born + (died - born) * share - self.x0) / (self.x1 - self.x0) * self.width
        low, high = next((low, high) for a, low, high in self.stack(self.state_at(x)) if a == allocation)
        return x, self.y + (self.y1 - (low + high) / 2) / (self.y1 - self.y0) * self.height

    def points(self, count: int) -> list[tuple[int, int]]:
        rng = random.Random(count)
        left, top = round(self.x) + 3, round(self.y) + 3
        return [
            (left + rng.randrange(round(self.width) - 6), top + rng.randrange(round(self.height) - 6))
            for _ in range(count)
        ]


def canvas_colours(window: Browser, points: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """RGB of pixels of the timeline, given as points of the window."""
    x, y, _, _ = window.box("#timeline")
    found = window.run(
        "const context = document.getElementById('timeline').getContext('2d');"
        "return arguments[0].map(([x, y]) => Array.from(context.getImageData(x, y, 1, 1).data).slice(0, 3))",
        [[px - round(x), py - round(y)] for px, py in points],
    )
    return np.array(found)


def channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def directions(colours: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Colours (count, 3) without their brightness."""
    return colours / np.linalg.norm(colours, axis=1, keepdims=True)


def wrong_colours(window: Browser, plot: Plot, count: int = 400) -> int:
    """At how many of some points the page shows another category than the timeline has there.

    Points next to a border between allocations are left out: it is a line of its own.
    """
    reference = np.array([channels(COLOURS[name]) for name in CATEGORIES])
    points, expected = [], []
    for x, y in plot.points(count):
        around = plot.around(x, y)
        if len(around) == 1:
            found = around.pop()
            points.append((x, y))
            expected.append(-1 if found is None else int(plot.timeline.allocations.category[found]))
    seen = canvas_colours(window, points)
    # Lines of the grid darken what they cross, all of its channels alike.
    nearest = np.argmin(((directions(seen)[:, None] - directions(reference)[None]) ** 2).sum(axis=2), axis=1)
    # Where nothing is live there are phases and the line of what is reserved, all of them grey.
    nearest[np.ptp(seen, axis=1) < 20] = -1
    assert len(points) > count / 3
    return int((nearest != np.array(expected)).sum())


def ungrouped(text: str) -> str:
    """Numbers without the commas between their digits."""
    return re.sub(r"(?<=\d),(?=\d)", "", text)


@needs_browser
@pytest.mark.parametrize("stacking", ["category", "time"])
def test_every_pixel_shows_the_category_of_what_is_there(shown: Browser, timeline: Timeline, stacking: str) -> None:
    shown.run(
        "const s = document.getElementById('stacking'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))",
        stacking,
    )
    shown.settle()
    plot = Plot(shown, timeline, stacking)
    assert wrong_colours(shown, plot) == 0
    for x, y, delta in ((0.7, 0.7, -400), (0.4, 0.5, -300), (0.5, 0.6, -500), (0.5, 0.5, 250)):
        shown.wheel(plot.x + plot.width * x, plot.y + plot.height * y, delta)
        shown.run("document.activeElement.blur()")
        plot.read_view()
        assert wrong_colours(shown, plot) == 0


@needs_browser
def test_pointing_shows_the_very_allocation_that_is_there(shown: Browser, timeline: Timeline) -> None:
    plot, seen = Plot(shown, timeline), set()
    allocations = timeline.allocations
    shown.wheel(plot.x + plot.width * 0.55, plot.y + plot.height * 0.6, -400)
    plot.read_view()
    for x, y in [point for point in plot.points(200) if len(plot.around(*point)) == 1][:40]:
        shown.move(x, y)
        expected = plot.allocation_at(x, y)
        details = shown.text("#details")
        if expected is None:
            assert "Hover over the timeline" in details
            continue
        seen.add(details)
        assert units.size(float(allocations.size_bytes[expected])) in details
        assert f"0x{int(allocations.address[expected]):x}" in details
        assert CATEGORIES[allocations.category[expected]] in details
        module = ".".join(timeline.modules[allocations.module[expected]]) if allocations.module[expected] >= 0 else "—"
        assert f"Module\n{module}\n" in details
        for frame in timeline.stacks.of(int(timeline.allocations.stack[expected])):
            assert f"{frame.name} {shortened(frame.filename)}:{frame.line}" in details
    assert len(seen) > 5


def shortened(filename: str) -> str:
    parts = filename.split("/")
    return f"…/{'/'.join(parts[-2:])}" if len(parts) > 3 else filename


def largest_at_peak(timeline: Timeline) -> list[int]:
    live = timeline.live_at(timeline.peak.state).tolist()
    return sorted(live, key=lambda a: -timeline.allocations.size_bytes[a])


@needs_browser
def test_phase_and_lifetime_are_told(shown: Browser, timeline: Timeline) -> None:
    plot = Plot(shown, timeline)
    allocations = timeline.allocations
    saved = next(a for a in largest_at_peak(timeline) if CATEGORIES[allocations.category[a]] == "activations")
    shown.move(*plot.middle_of(saved))
    details = ungrouped(shown.text("#details"))
    assert "allocated in forward, released in backward" in details
    born, died = int(allocations.born[saved]), int(allocations.died[saved])
    assert f"from event {born} to event {died}: {died - born} events" in details


@needs_browser
def test_the_wheel_zooms_about_the_pointer_and_changes_the_picture(shown: Browser, timeline: Timeline) -> None:
    plot, before = Plot(shown, timeline), shown.screenshot()
    x, y = plot.x + plot.width * 0.6, plot.y + plot.height * 0.7
    state, height = plot.x0 + (plot.x1 - plot.x0) * 0.6, plot.bytes_at(y)
    shown.wheel(x, y, -300)
    zoomed = Plot(shown, timeline)
    assert (zoomed.x1 - zoomed.x0) / (plot.x1 - plot.x0) == pytest.approx(np.exp(-0.66), rel=0.01)
    assert zoomed.x0 + (zoomed.x1 - zoomed.x0) * 0.6 == pytest.approx(state, rel=0.01)
    assert zoomed.bytes_at(y) == pytest.approx(height, rel=0.01)
    assert shown.screenshot() != before


@needs_browser
@pytest.mark.parametrize(("axis", "x", "y"), [("y", -30, 0.5), ("x", 0.5, 20)])
def test_over_an_axis_the_wheel_zooms_that_axis_alone(
    shown: Browser, timeline: Timeline, axis: str, x: float, y: float
) -> None:
    plot = Plot(shown, timeline)
    at = plot.x + (plot.width * x if x > 0 else x), plot.y + (plot.height * y if y < 1 else plot.height + y)
    shown.wheel(*at, -300)
    zoomed = Plot(shown, timeline)
    assert ((zoomed.x0, zoomed.x1) == (plot.x0, plot.x1)) == (axis == "y")
    assert ((zoomed.y0, zoomed.y1) == (plot.y0, plot.y1)) == (axis == "x")


@needs_browser
def test_a_double_click_zooms_until_one_allocation_fills_the_view(shown: Browser, timeline: Timeline) -> None:
    plot = Plot(shown, timeline)
    small = min(
        (int(a) for a in timeline.live_at(timeline.peak.state) if timeline.allocations.size_bytes[a] > 300_000),
        key=lambda a: int(timeline.allocations.size_bytes[a]),
    )
    x, y = plot.middle_of(small)
    shown.double_click(x, y)
    pinned = plot.allocation_at(round(x), round(y))
    assert pinned is not None
    zoomed = Plot(shown, timeline)
    visible = float(timeline.allocations.size_bytes[pinned]) / (zoomed.y1 - zoomed.y0)
    assert visible > 0.1
    assert "PINNED ALLOCATION" in shown.text("#details-title").upper()
    assert units.size(float(timeline.allocations.size_bytes[pinned])) in shown.text("#details")


@needs_browser
def test_dragging_moves_the_view_with_the_hand(shown: Browser, timeline: Timeline) -> None:
    start = Plot(shown, timeline)
    middle = start.x + start.width / 2, start.y + start.height / 2
    shown.wheel(*middle, -400)
    plot = Plot(shown, timeline)
    shown.drag(middle, (middle[0] - 120, middle[1] + 60))
    moved = Plot(shown, timeline)
    assert moved.x0 - plot.x0 == pytest.approx(120 / plot.width * (plot.x1 - plot.x0), rel=0.05)
    assert moved.y0 - plot.y0 == pytest.approx(60 / plot.height * (plot.y1 - plot.y0), rel=0.05)
    assert moved.x1 - moved.x0 == pytest.approx(plot.x1 - plot.x0)


@needs_browser
def test_keys_do_what_the_hints_say(shown: Browser, timeline: Timeline) -> None:
    shown.run("document.getElementById('timeline').focus()")
    whole = Plot(shown, timeline)
    shown.keys("+", "+")
    closer = Plot(shown, timeline)
    assert closer.x1 - closer.x0 == pytest.approx(0.49 * (whole.x1 - whole.x0), rel=0.01)
    shown.keys("\ue014")
    assert Plot(shown, timeline).x0 > closer.x0
    shown.keys("\ue013")
    assert Plot(shown, timeline).y0 > closer.y0
    shown.keys("p")
    peak = Plot(shown, timeline)
    assert peak.x0 <= timeline.peak.state <= peak.x1
    assert peak.y0 <= timeline.peak.allocated_bytes <= peak.y1
    shown.keys("0")
    fitted = Plot(shown, timeline)
    assert (fitted.x0, fitted.x1, fitted.y0, fitted.y1) == (whole.x0, whole.x1, whole.y0, whole.y1)
    shown.keys("/")
    assert shown.run("return document.activeElement.id") == "search"


@needs_browser
def test_buttons_zoom_and_fit(shown: Browser, timeline: Timeline) -> None:
    whole = Plot(shown, timeline)
    shown.press("#zoom-in")
    assert Plot(shown, timeline).x1 - Plot(shown, timeline).x0 < whole.x1 - whole.x0
    shown.press("#to-peak")
    assert Plot(shown, timeline).y0 > 0
    shown.press("#fit")
    assert (Plot(shown, timeline).x0, Plot(shown, timeline).x1) == (whole.x0, whole.x1)


@needs_browser
def test_a_click_pins_and_escape_lets_go(shown: Browser, timeline: Timeline) -> None:
    plot = Plot(shown, timeline)
    first, second = largest_at_peak(timeline)[:2]
    shown.click(*plot.middle_of(first))
    pinned = shown.text("#details")
    shown.move(*plot.middle_of(second))
    assert shown.text("#details") == pinned
    shown.keys("\ue00c")
    shown.move(*plot.middle_of(second, 0.6))
    assert shown.text("#details") != pinned


@needs_browser
def test_searching_finds_modules_functions_and_categories(shown: Browser, timeline: Timeline) -> None:
    allocations = timeline.allocations
    before = shown.screenshot()

    def expected(wanted: str) -> str:
        found = [
            index
            for index in range(len(allocations))
            if wanted in CATEGORIES[allocations.category[index]]
            or (allocations.module[index] >= 0 and wanted in ".".join(timeline.modules[allocations.module[index]]))
            or any(
                wanted in frame.filename or wanted in frame.name
                for frame in timeline.stacks.of(int(timeline.allocations.stack[index]))
            )
        ]
        live = set(timeline.live_at(timeline.peak.state).tolist()) & set(found)
        held = sum(int(allocations.size_bytes[index]) for index in live)
        return f"{len(found)} allocations, {units.size(held)} at the peak"

    for wanted in ("layers.2.attn", "scaled_dot_product", "adamw.py", "gradients"):
        shown.run("document.getElementById('search').value = ''")
        shown.press("#search")
        shown.keys(*wanted)
        assert ungrouped(shown.text("#matches")) == expected(wanted)
        assert shown.screenshot() != before
    shown.keys("\ue007")
    assert "gradients" in shown.text("#details")
    assert Plot(shown, timeline).y0 > 0


@needs_browser
def test_the_largest_at_the_peak_are_listed_and_lead_to_the_picture(shown: Browser, timeline: Timeline) -> None:
    listed = ungrouped(shown.text("#groups"))
    group = timeline.groups(timeline.peak.state)[0]
    assert f"{group.count} × {units.size(group.size_bytes)}" in listed
    shown.press("#groups button")
    assert units.size(group.size_bytes) in shown.text("#details")
    assert Plot(shown, timeline).x1 - Plot(shown, timeline).x0 < timeline.states


@needs_browser
def test_the_overview_moves_the_view(shown: Browser, timeline: Timeline) -> None:
    plot = Plot(shown, timeline)
    shown.wheel(plot.x + 10, plot.y + plot.height - 5, -600)
    x, y, width, height = shown.box("#overview")
    shown.click(x + PLOT["left"] + (width - PLOT["left"] - PLOT["right"]) * 0.75, y + height / 2)
    moved = Plot(shown, timeline)
    assert (moved.x0 + moved.x1) / 2 == pytest.approx(timeline.states * 0.75, rel=0.02)


@needs_browser
def test_light_and_dark(shown: Browser) -> None:
    def paper() -> str:
        return str(shown.run("return getComputedStyle(document.body).backgroundColor"))

    light = paper()
    assert light == "rgb(255, 255, 255)"
    shown.press("#theme")
    assert paper() == "rgb(16, 20, 24)"
    x, y, _, _ = shown.box("#timeline")
    assert canvas_colours(shown, [(round(x) + 1, round(y) + 60)]).tolist() == [[16, 20, 24]]


@needs_browser
def test_facts_and_legend_are_those_of_the_timeline(shown: Browser, timeline: Timeline) -> None:
    facts = ungrouped(shown.text("#facts"))
    assert f"peak {units.size(timeline.peak.allocated_bytes)} in " in facts
    assert f"{len(timeline.allocations)} allocations" in facts
    legend = shown.text("#legend")
    for name, size in timeline.categories_at(timeline.peak.state).items():
        assert f"{name}\n{units.size(size)}" in legend.replace(" \n", "\n") or f"{name}{units.size(size)}" in legend


@needs_browser
def test_the_page_asks_the_network_for_nothing(shown: Browser) -> None:
    assert shown.run("return performance.getEntriesByType('resource').map(e => e.name)") == []


@needs_browser
def test_names_with_markup_are_shown_and_not_run(window: Browser, tmp_path: Path) -> None:
    events: list[MemoryEvent] = [
        PhaseBegan("forward"),
        Allocated(1, 1 << 30, "activations", HOSTILE, (snapshot_frame(HOSTILE),)),
        Allocated(2, 1 << 29, "gradients", HOSTILE),
        Released(2),
    ]
    path = tmp_path / "hostile.html"
    memory_page.write(path, from_events(events, "simulated", device_name=HOSTILE), HOSTILE)
    window.open(path)
    window.settle()
    plot = Plot(window, from_events(events, "simulated"))
    window.move(plot.x + plot.width * 0.8, plot.y + plot.height * 0.9)
    assert window.run("return window.broken === undefined")
    assert HOSTILE in window.text("h1")
    assert HOSTILE in window.text("#simulated")
    assert window.text("#details").count(HOSTILE) >= 2
    assert HOSTILE in window.text("#groups")
    assert window.complaints() == []


def snapshot_frame(name: str) -> Frame:
    return Frame(f"/{name}.py", 3, name)


@needs_browser
def test_pages_of_nothing_and_of_next_to_nothing_open(window: Browser, tmp_path: Path) -> None:
    cases: list[list[MemoryEvent]] = [[], [Allocated(1, 512, "inputs")], [Allocated(1, 0, "inputs"), Released(1)]]
    for number, events in enumerate(cases):
        path = tmp_path / f"{number}.html"
        memory_page.write(path, from_events(events, "measured"), "small")
        window.open(path)
        window.settle()
        assert window.run("return document.documentElement.dataset.ready") == "yes"
        plot = Plot(window, from_events(events, "measured"))
        window.move(plot.x + 20, plot.y + plot.height - 5)
        window.wheel(plot.x + 20, plot.y + plot.height - 5, -500)
        assert window.complaints() == []


@needs_browser
def test_a_damaged_page_says_what_is_wrong(window: Browser, page: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.html"
    path.write_text(re.sub(r'(id="data">).{40}', r"\1", page.read_text()))
    window.open(path)
    assert "The timeline cannot be shown" in window.text("#problem")
    window.complaints()


@needs_browser
def test_on_a_phone_a_tap_tells_and_two_fingers_zoom(page: Path, timeline: Timeline, tmp_path: Path) -> None:
    with browser(tmp_path / "profile", 390, 844, phone=True) as phone:
        phone.open(page)
        phone.settle()
        assert phone.run("return document.documentElement.scrollWidth") <= 390
        plot = Plot(phone, timeline)
        x, y = plot.x + plot.width * 0.7, plot.y + plot.height * 0.9
        phone.touch([(x, y)])
        assert "parameters" in phone.text("#details")
        assert "parameters" in phone.text("#tip")
        phone.touch(
            [(x - 40, y - 40), (x - 60, y - 60), (x - 80, y - 80)],
            [(x + 10, y - 10), (x + 20, y + 5), (x + 30, y + 15)],
        )
        closer = Plot(phone, timeline)
        assert closer.x1 - closer.x0 < 0.8 * (plot.x1 - plot.x0)
        assert phone.complaints() == []
