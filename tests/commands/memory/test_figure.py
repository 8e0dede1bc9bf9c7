"""The picture shows the peak where it is, whatever is left out, and says what it is a picture of."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench import units
from sysbench.commands.memory import timeline_figure as memory_figure
from sysbench.commands.memory.figures import COLOURS, STACKING
from sysbench.errors import OutputError, UsageError
from sysbench.render import plots
from sysbench.snapshot import CATEGORIES, snapshot
from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.timeline import Timeline
from tests.snapshot.event_timelines import Allocated, MemoryEvent, PhaseBegan, from_events
from tests.snapshot.synthetic_snapshots import Model, training_snapshot

MODEL = Model(layers=3, d_model=128, d_ff=512, heads=4, vocab=1000, ctx=64)


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return from_snapshot(snapshot.of(training_snapshot(MODEL, steps=2)))


def texts_of(path: Path) -> list[str]:
    return ["".join(found.itertext()) for found in ElementTree.parse(path).iter() if found.tag.endswith("}text")]


def test_a_png_is_as_wide_as_the_text_of_a_page(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "memory.png"
    memory_figure.write(path, timeline, "tiny")
    (width,) = struct.unpack(">I", path.read_bytes()[16:20])
    assert width == plots.WIDTH_IN * plots.DOTS_PER_INCH


def test_the_figure_says_what_it_shows(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "memory.svg"
    memory_figure.write(path, timeline, "tiny · ctx 64 · fp32")
    said = "\n".join(texts_of(path))
    phase = timeline.phase_at(timeline.peak.state)
    assert phase is not None
    for expected in (
        "tiny · ctx 64 · fp32",
        "SIMULATED for NVIDIA A100-SXM4-80GB",
        "allocated, MiB",
        "allocator events",
        "forward",
        "backward",
        "optimizer",
        f"peak {units.size(timeline.peak.allocated_bytes)} in {phase.name}",
        "activations",
        "at the peak",
        "reserved",
        "adamw.py:161",
    ):
        assert expected in said


def test_a_measured_figure_does_not_claim_to_be_simulated_and_tells_what_it_guessed(tmp_path: Path) -> None:
    path = tmp_path / "memory.svg"
    measured = from_snapshot(snapshot.of(training_snapshot(MODEL, described=False)))
    memory_figure.write(path, measured, "someone's")
    said = "\n".join(texts_of(path))
    assert "SIMULATED" not in said
    assert "inferred from stacks and lifetimes" in said


def test_the_stack_is_as_high_as_what_is_allocated(timeline: Timeline) -> None:
    axes = memory_figure.draw(timeline, "tiny").axes[0]
    outline = next(line for line in axes.lines if line.get_linewidth() < 0.8 and np.size(line.get_xdata()) > 2)
    states = np.asarray(outline.get_xdata()).astype(int)
    assert np.allclose(np.asarray(outline.get_ydata()), timeline.allocated_bytes[states] / 2**20)
    assert timeline.peak.state in states


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=400), st.integers(1, 40))
def test_leaving_states_out_never_loses_a_peak(values: list[int], buckets: int) -> None:
    column = np.array(values, np.int64)
    kept = memory_figure.representative_states(column, buckets)
    assert column[kept].max() == column.max()
    assert column[kept].min() == column.min()
    assert (np.diff(kept) > 0).all()
    assert {0, len(values) - 1} <= set(kept.tolist())
    # A peak of any stretch survives in its stretch, not only the highest of all.
    if len(values) > 3 * buckets:
        edges = np.linspace(0, len(values), buckets + 1).astype(int)
        for first, end in itertools.pairwise(edges):
            assert column[first:end].max() in column[kept[(kept >= first) & (kept < end)]]


def test_a_spike_of_one_event_among_many_is_drawn() -> None:
    sizes = np.full(200_000, 1000, np.int64)
    sizes[123_456] = 5000
    kept = memory_figure.representative_states(sizes, memory_figure.BUCKETS)
    assert 123_456 in kept
    assert len(kept) < 2000


def test_an_svg_of_forty_thousand_events_stays_under_a_megabyte(tmp_path: Path) -> None:
    raw = training_snapshot(Model(layers=48, d_model=256, d_ff=1024, heads=8, vocab=5000, ctx=128), steps=11)
    timeline = from_snapshot(snapshot.of(raw))
    assert timeline.states > 40_000
    path = tmp_path / "memory.svg"
    memory_figure.write(path, timeline, "many")
    assert path.stat().st_size < 1_000_000


def test_names_with_markup_and_formulas_are_shown_as_they_are(tmp_path: Path) -> None:
    hostile = 'a</text><script>alert("x")</script> $\\frac{1}$ \x00\x1b[31m & <b>'
    events: list[MemoryEvent] = [PhaseBegan("forward"), Allocated(1, 1 << 20, "activations", hostile)]
    path = tmp_path / "memory.svg"
    memory_figure.write(path, from_events(events, "simulated", device_name=hostile), hostile)
    tree = ElementTree.parse(path)
    assert not [found for found in tree.iter() if found.tag.endswith("script")]
    assert any("$\\frac{1}$" in text and "</text><script>" in text for text in texts_of(path))


def test_names_in_any_script_are_drawn_without_a_complaint(tmp_path: Path) -> None:
    events = [Allocated(1, 1 << 20, "activations", "模型.層")]
    memory_figure.write(tmp_path / "memory.png", from_events(events, "measured"), "模型 🚀")


def test_nothing_at_all_is_a_figure_too(tmp_path: Path) -> None:
    path = tmp_path / "memory.svg"
    memory_figure.write(path, from_events([], "measured"), "empty")
    assert "empty" in "\n".join(texts_of(path))


def test_the_same_timeline_gives_the_same_file(timeline: Timeline, tmp_path: Path) -> None:
    for suffix in plots.FORMATS:
        first, second = tmp_path / f"first.{suffix}", tmp_path / f"second.{suffix}"
        memory_figure.write(first, timeline, "tiny")
        memory_figure.write(second, timeline, "tiny")
        assert first.read_bytes() == second.read_bytes()


def test_other_formats_and_places_get_one_line(timeline: Timeline, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"memory.bmp is not a valid picture name: it must end in png, svg, pdf"):
        memory_figure.write(tmp_path / "memory.bmp", timeline, "tiny")
    with pytest.raises(OutputError, match="cannot write"):
        memory_figure.write(tmp_path / "no" / "memory.png", timeline, "tiny")


def test_matplotlib_and_torch_wait_until_a_picture_is_wanted() -> None:
    script = """
import sys, sysbench.commands.memory.timeline_figure, sysbench.commands.memory.page
print({"matplotlib", "torch"} & set(sys.modules))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def seen_with(colour: str, deficiency: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """CIE L*a*b* of a colour as it is seen with a deficiency, given as a matrix over linear RGB."""
    encoded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(deficiency @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    cube = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * cube[1] - 16, 500 * (cube[0] - cube[1]), 200 * (cube[1] - cube[2])])


# Machado, Oliveira and Fernandes 2009, severity 1.0.
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


@pytest.mark.parametrize("deficiency", DEFICIENCIES.values(), ids=list(DEFICIENCIES))
def test_neighbours_in_the_stack_can_be_told_apart_with_any_colour_vision(deficiency: npt.NDArray[np.float64]) -> None:
    stacked = [COLOURS[CATEGORIES[code]] for code in STACKING]
    for below, above in itertools.pairwise(stacked):
        assert np.linalg.norm(seen_with(below, deficiency) - seen_with(above, deficiency)) > 12


def test_every_category_has_a_colour_of_its_own_and_a_place() -> None:
    assert sorted(STACKING) == list(range(len(CATEGORIES)))
    assert len(set(COLOURS.values())) == len(CATEGORIES)
