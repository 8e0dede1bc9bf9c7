"""Pictures of timing, profiling and memory runs: they show the numbers, say what they leave out, and bear any name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from sysbench.commands.memory import figures as memory_bars
from sysbench.commands.profile import figures as profile_figures
from sysbench.commands.time import figures as time_figures
from sysbench.commands.time.record import TimeCellRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.render import plots as picture_file
from sysbench.render.plots import WIDTH_IN, LazyFigure
from tests.fixtures_findings import first_report, spread_about, time_cell
from tests.fixtures_memory import GIB, memory_cell
from tests.fixtures_profiles import Kernel, attention_rates, profile_cell
from tests.fixtures_timing import A100, record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOSTILE = "$\\frac{1}{0}$ <script>alert(1)</script> & \x1b[2J \ud83d\ude00 name"

KERNELS = [Kernel("ampere_sgemm_128x64_tn", "forward", 80.0, 217), Kernel("softmax_warp_forward", "backward", 20.0, 36)]

MEMORY = [
    memory_cell(
        (10 + ctx / 64) * GIB,
        simulate="h100",
        fits=True,
        ctx=ctx,
        mode=mode,
        precision=precision,
        by_category={"parameters": 10 * GIB, "activations": ctx / 64 * GIB},
        phases={"forward": 9 * GIB, "backward": 10 * GIB},
    )
    for ctx in (128, 256)
    for mode in ("forward", "train")
    for precision in ("fp32", "bf16")
]


def sweep() -> list[TimeCellRecord]:
    spec = {"size": "small,medium,xl", "ctx": "128-1024*2", "precision": "fp32,bf16"}
    return record(TimeSpec.model_validate(spec)).cells


def everything() -> Iterator[tuple[str, LazyFigure]]:
    for drawn in time_figures.figures(sweep()):
        yield f"time {drawn.name}", drawn
    profiles = [
        profile_cell(KERNELS, size=size, rates=attention_rates({"scores": 7, "softmax": 9, "output": 8}))
        for size in ("large", "xl")
    ]
    for drawn in profile_figures.figures(profiles):
        yield f"profile {drawn.name}", drawn
    for drawn in memory_bars.figures(MEMORY):
        yield f"memory {drawn.name}", drawn


def one(
    cells: Sequence[Any], name: str, figures: Callable[[Any], Iterator[LazyFigure]] = time_figures.figures
) -> LazyFigure:
    (found,) = [drawn for drawn in figures(cells) if drawn.name == name]
    return found


def texts(svg: bytes) -> str:
    root = ElementTree.fromstring(svg)
    return " ".join("".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text"))


def tops(figure: Figure) -> list[float]:
    """Of every panel the upper end of its highest box."""
    found = []
    for axes in figure.axes:
        corners = [path.vertices[:, 1].max() for each in axes.collections for path in each.get_paths()]
        found.append(float(max(corners)))
    return found


@pytest.mark.parametrize(("what", "drawn"), list(everything()))
def test_every_picture_is_svg_of_bounded_size_the_same_every_time(what: str, drawn: LazyFigure) -> None:
    content = picture_file.content(drawn.draw, "svg")
    assert len(content) < 300_000, what
    assert content == picture_file.content(drawn.draw, "svg")
    ElementTree.fromstring(content)
    assert drawn.caption.endswith(".")


def written_in(figure: Figure) -> list[Any]:
    """Everything that is written; of ticks only those that are within their axis."""
    beyond = {
        id(tick.label1)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for low, high in [sorted(axis.get_view_interval())]
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not low <= tick.get_loc() <= high
    }
    found = figure.findobj(mpl.text.Text)
    return [text for text in found if text.get_text().strip() and text.get_visible() and id(text) not in beyond]


@pytest.mark.parametrize(("what", "drawn"), list(everything()))
def test_letters_stay_on_the_page_and_are_large_enough_to_read(what: str, drawn: LazyFigure) -> None:
    with mpl.rc_context(picture_file._STYLE):
        figure = drawn.draw()
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        width, height = canvas.get_width_height()
        assert figure.get_figwidth() == WIDTH_IN
        for text in written_in(figure):
            box = text.get_window_extent()
            assert text.get_fontsize() >= 7, (what, text.get_text())
            assert box.x0 > -2, (what, text.get_text())
            assert box.x1 < width + 2, (what, text.get_text())
            assert box.y0 > -2, (what, text.get_text())
            assert box.y1 < height + 2, (what, text.get_text())


def test_bars_are_as_high_as_the_median_step_is_long() -> None:
    cells = [
        time_cell({"forward": spread_about(f, 1e-4), "backward": spread_about(2 * f, 1e-4)}, ctx=ctx)
        for ctx, f in ((256, 0.05), (512, 0.1))
    ]
    (top,) = tops(one(cells, "phases").draw())
    assert top == pytest.approx(300, rel=0.01)  # milliseconds


def test_bars_of_memory_are_as_high_as_the_peak() -> None:
    figure = one(MEMORY, "peaks", memory_bars.figures).draw()
    assert tops(figure) == pytest.approx([14, 14])  # GiB, of forward and of train


def test_what_is_simulated_says_so_in_the_picture() -> None:
    for drawn in memory_bars.figures(MEMORY):
        assert "SIMULATED for NVIDIA H100" in texts(picture_file.content(drawn.draw, "svg"))
        assert "simulated for" in drawn.caption
    measured = [memory_cell(GIB, ctx=ctx, by_category={"parameters": GIB}) for ctx in (128, 256)]
    assert "SIMULATED" not in texts(picture_file.content(one(measured, "peaks", memory_bars.figures).draw, "svg"))


def test_where_memory_ends_is_marked() -> None:
    cells = [
        time_cell({"forward": spread_about(0.1, 1e-3), "backward": spread_about(0.2, 1e-3)}, ctx=256),
        time_cell({}, ctx=512, mode="forward-backward", outcome="oom"),
    ]
    assert "out of memory" in texts(picture_file.content(one(cells, "phases").draw, "svg"))


def test_a_picture_says_what_it_has_no_room_for() -> None:
    cells = [
        time_cell(
            {"forward": spread_about(0.1, 1e-3)}, ctx=ctx, precision=precision, attention=attention, execution=execution
        )
        for ctx in (128, 256)
        for precision in ("fp32", "tf32", "bf16")
        for attention in ("naive", "sdpa", "math")
        for execution in ("eager", "compiled")
    ]
    assert "Shown are the first 12 of 18 settings." in one(cells, "times").caption


def test_one_cell_has_no_curves_but_its_phases() -> None:
    cell = time_cell({"forward": spread_about(0.1, 1e-3), "backward": spread_about(0.2, 1e-3)})
    assert [drawn.name for drawn in time_figures.figures([cell])] == ["phases"]


def test_nothing_measured_is_nothing_drawn() -> None:
    assert list(time_figures.figures([time_cell({}, outcome="crashed")])) == []
    assert list(time_figures.figures([])) == []
    assert list(memory_bars.figures([memory_cell(None, outcome="crashed", ctx=128)])) == []
    assert list(profile_figures.figures([])) == []


def test_names_from_outside_stay_text() -> None:
    device = A100.device.model_copy(update={"name": HOSTILE})
    cells = [cell.model_copy(update={"device": device}) for cell in first_report() if cell.axes["size"] == "small"]
    for drawn in time_figures.figures(cells):
        content = picture_file.content(drawn.draw, "svg")
        assert "alert(1)" in texts(content)
        assert b"<script" not in content
        assert not re.search(rb"[\x00-\x08\x0b-\x1f]", content)
