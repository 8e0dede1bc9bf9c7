"""`sysbench memory` from its parts: events to record, tables and screen; categories of a recorded history."""

from __future__ import annotations

import io
import json
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from rich.console import Console
from rich.text import Text

from sysbench import units
from sysbench.commands.memory import fold as memory_fold
from sysbench.commands.memory import measure
from sysbench.commands.memory import tables as memory_tables
from sysbench.commands.memory.live import MemoryScreen, MemoryState, advance
from sysbench.commands.memory.record import PeakMeasured, VerdictReached
from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.commands.memory.verdicts import verdict_text
from sysbench.errors import DoesNotFitError
from sysbench.lab.memory.allocator import _Boundary, assign_categories, is_out_of_memory
from sysbench.lab.step import TrainingStep
from sysbench.log import journal
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    DeviceInfo,
    Event,
    OfRank,
    Reading,
    RunFinished,
)
from sysbench.log.outcomes import stage_phrase
from sysbench.render.dashboard.cell_lines import CellLines
from sysbench.render.table import Word
from sysbench.simulate.recording import phases_of
from tests.golden.compare import assert_golden, plain_environment
from tests.hosts import run_started
from tests.simulate.tensor_accounting import TensorAccounting

__all__ = ["plain_environment"]

CPU = DeviceInfo(name="Made-up CPU", type="cpu")
SAVED = Path(__file__).parents[2] / "fixtures" / "runs"


def spec(**fields: Any) -> MemorySpec:
    small = {"d_model": 32, "d_ff": 64, "layers": 2, "heads": 2, "vocab": 50, "batch": 2, "ctx": 24}
    return MemorySpec.model_validate({**small, **fields})


def events_of(cell: MemoryCell, artifact: Path | None = None) -> list[Event]:
    """What a worker would say of the cell, to its end."""
    said: list[Event] = [
        CellStarted(at_s=1, cell=cell.key, index=0, axes=cell.model_dump(mode="json"), device=CPU),
    ]
    outcome, detail = "ok", None
    try:
        said.extend(measure.run(cell, CPU, artifact))
    except DoesNotFitError as error:
        outcome, detail = "oom", str(error)
    finished = CellFinished.model_validate({"at_s": 2, "cell": cell.key, "outcome": outcome, "detail": detail})
    return [*said, finished]


def run_of(run: MemorySpec) -> list[Event]:
    said = [event for cell in run.cells() for event in events_of(cell)]
    return [run_started(run), *said, RunFinished(at_s=3, status="complete")]


@pytest.fixture(scope="module")
def simulated() -> list[Event]:
    return run_of(spec(mode="forward,train", precision="fp32,bf16", simulate="24GiB"))


# --- what is measured is what there is


@pytest.mark.parametrize("mode", ["inference", "forward", "train-first", "train"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_measured_tensors_are_those_that_an_independent_count_finds(mode: str, precision: str) -> None:
    (cell,) = spec(mode=mode, precision=precision, device="cpu").cells()
    record = memory_fold.fold(run_of(spec(mode=mode, precision=precision, device="cpu"))).cells[0]
    peaks: dict[str, int] = {}
    with TensorAccounting() as accounting:
        step = TrainingStep(cell.step, torch.device("cpu"))
        for _, phase, run in phases_of(step, cell.mode):
            accounting.reset_peak()
            run()
            peaks[phase] = accounting.peak_bytes
    assert {name: phase.allocated_peak_bytes for name, phase in record.peaks_by_phase.items()} == peaks


# --- from events to what is shown


def test_a_run_folds_into_one_cell_for_each_point_with_sums_that_hold(simulated: list[Event]) -> None:
    record = memory_fold.fold(simulated)
    assert [(cell.axes["mode"], cell.axes["precision"]) for cell in record.cells] == [
        ("forward", "fp32"),
        ("train", "fp32"),
        ("forward", "bf16"),
        ("train", "bf16"),
    ]
    for cell in record.cells:
        assert sum(cell.by_category.values()) == cell.peak_allocated_bytes
        assert sum(group.total_bytes for group in cell.largest) <= (cell.peak_allocated_bytes or 0)


def test_a_simulated_record_says_which_pytorch_it_follows(simulated: list[Event]) -> None:
    record = json.loads(memory_fold.fold(simulated).model_dump_json())
    installed = ".".join(torch.__version__.split(".")[:2])
    assert {cell["gpu"]["torch"] for cell in record["cells"]} == {installed}


def test_every_table_of_a_simulation_is_marked(simulated: list[Event]) -> None:
    record = memory_fold.fold(simulated)
    for name, build in memory_tables.TABLES.items():
        for table in build(record):
            assert "simulated" in table.title, name


def test_a_cell_that_does_not_fit_says_where_and_how_much_is_missing() -> None:
    record = memory_fold.fold(run_of(spec(mode="train", simulate="650MiB", batch=512, ctx=512)))
    (cell,) = record.cells
    assert cell.outcome == "oom"
    assert cell.verdict is not None
    assert cell.verdict.failed_phase is not None
    assert stage_phrase(cell.verdict.failed_phase) in memory_tables.verdict_text(cell)
    assert cell.verdict.margin_bytes is not None
    assert cell.verdict.margin_bytes < 0


@pytest.mark.parametrize(
    ("memory", "stage", "said"),
    [
        ("602MiB", "build", "runs out while the model is built"),
        ("700MiB", "attention trial", "runs out in a trial run of the model's attention"),
    ],
)
def test_running_out_before_the_first_step_names_the_stage(memory: str, stage: str, said: str) -> None:
    """The naive attention of 8 × 1,024 positions takes far more than the small model around it."""
    (cell,) = memory_fold.fold(run_of(spec(mode="forward", simulate=memory, batch=8, ctx=1024))).cells
    assert cell.verdict is not None
    assert cell.verdict.failed_phase == stage
    assert cell.detail is not None
    assert said in cell.detail


def test_not_fitting_is_running_out_of_memory() -> None:
    assert is_out_of_memory(DoesNotFitError("no"))


def test_a_search_starts_from_its_value_and_says_what_it_found() -> None:
    run = spec(mode="forward", simulate="700MiB", find="ctx", ctx="64")
    (cell,) = run.cells()
    assert cell.ctx == 64
    (record,) = memory_fold.fold(run_of(run)).cells
    assert record.found is not None
    assert record.found.beyond == record.found.value + 1
    assert record.residual_bytes == 2 * record.found.value * 32 * 4


@pytest.fixture(scope="module")
def too_large() -> list[Event]:
    """A search for the largest batch on a GPU that is too small for weights, gradients and AdamW's state alone."""
    return run_of(spec(mode="train", simulate="900MiB", find="batch", batch=4, vocab=400_000))


def test_a_search_that_finds_nothing_shows_the_value_of_its_numbers_everywhere(too_large: list[Event]) -> None:
    record = memory_fold.fold(too_large)
    (cell,) = record.cells
    assert cell.found is not None
    assert (cell.cell.batch, cell.found.value, cell.found.beyond) == (4, 0, 1)
    alone = memory_fold.fold(run_of(spec(mode="train", simulate="900MiB", batch=1, vocab=400_000))).cells[0]
    assert (cell.peak_allocated_bytes, cell.residual_bytes) == (alone.peak_allocated_bytes, alone.residual_bytes)
    shown = memory_tables.sheet(record)
    assert "batch 1" in shown.subject
    (cells,) = memory_tables.tables_for(record, ["cells"])
    place = [column.key for column in cells.columns].index("batch")
    assert {row[place] for row in cells.rows} == {1}


def test_a_search_that_finds_nothing_still_shows_the_lines_of_the_largest_allocations(too_large: list[Event]) -> None:
    (cell,) = memory_fold.fold(too_large).cells
    assert cell.largest
    assert all(group.stack for group in cell.largest if group.category != "workspace")


def test_a_search_that_finds_nothing_says_so(too_large: list[Event]) -> None:
    (cell,) = memory_fold.fold(too_large).cells
    assert verdict_text(cell).endswith(" Not even batch 1 fits.")


def test_where_memory_runs_out_is_told_beside_the_values_reached_until_then(too_large: list[Event]) -> None:
    record = memory_fold.fold(too_large)
    (verdict,) = [cell.verdict for cell in record.cells]
    assert verdict is not None
    for name in ("summary", "phases", "categories", "cells"):
        (table,) = memory_tables.tables_for(record, [name])
        assert f"memory runs out in {verdict.failed_phase}: the values are the highest until then" in table.notes
    (summary,) = memory_tables.tables_for(record, ["summary"])
    assert (
        "to spare: GPU memory minus reserved memory and 600.0 MiB for the CUDA context; negative: what the whole step "
        "lacks"
    ) in summary.notes


def test_what_is_to_spare_is_the_memory_minus_reserved_memory_and_the_context(simulated: list[Event]) -> None:
    record = memory_fold.fold(simulated)
    (summary,) = memory_tables.tables_for(record, ["summary"])
    assert summary.notes == ("to spare: GPU memory minus reserved memory and 600.0 MiB for the CUDA context",)
    for cell in record.cells:
        assert cell.gpu is not None
        assert cell.verdict is not None
        assert cell.verdict.margin_bytes == (
            cell.gpu.memory_bytes - cell.gpu.context_bytes - (cell.peak_reserved_bytes or 0)
        )


# --- while it runs


def _shown(state: MemoryState, width: int, height: int, colours: Literal["truecolor"] | None = None) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system=colours)
    console.print(MemoryScreen(state, 10.0), end="")
    return file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10), (20, 5)])
def test_the_screen_is_never_wider_or_higher_than_the_terminal(simulated: list[Event], width: int, height: int) -> None:
    state = MemoryState()
    for event in simulated:
        state = advance(state, event)
        lines = _shown(state, width, height)
        assert len(lines) <= height
        assert max(map(len, lines), default=0) <= width


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_sweep_in_mid_run_looks_like_this(width: int) -> None:
    events = list(journal.read(SAVED / "memory-sweep.jsonl"))
    last = [number for number, event in enumerate(events) if isinstance(event, VerdictReached)][3]
    state = reduce(advance, events[: last + 1], MemoryState())
    console = Console(file=io.StringIO(), width=width, height=24, force_terminal=True, color_system="truecolor")
    console.print(MemoryScreen(state, events[last].at_s), end="")
    assert isinstance(console.file, io.StringIO)
    assert_golden(f"memory_live_{width}x24", Text.from_ansi(console.file.getvalue()).plain)


def test_the_screen_shows_every_phase_by_category(simulated: list[Event]) -> None:
    state = MemoryState()
    for event in simulated:
        state = advance(state, event)
    text = "\n".join(_shown(state, 100, 40, "truecolor"))
    for word in ("zero_grad", "backward", "optimizer state", "simulated for a GPU with 24GiB", "fits"):
        assert word in text


def test_without_a_terminal_every_cell_gets_a_line_that_says_simulated(simulated: list[Event]) -> None:
    file = io.StringIO()
    lines = CellLines(Console(file=file), view=MemoryScreen)
    for event in simulated:
        lines.show(event)
    finished = [line for line in file.getvalue().splitlines() if line[0].isdigit()]
    assert len(finished) == 4
    assert all("simulated peak" in line and "fits" in line for line in finished)


def test_a_line_says_where_memory_ran_out_and_with_which_value_of_a_search(too_large: list[Event]) -> None:
    file = io.StringIO()
    lines = CellLines(Console(file=file), view=MemoryScreen)
    for event in too_large:
        lines.show(event)
    (cell,) = memory_fold.fold(too_large).cells
    assert cell.verdict is not None
    phase, margin_bytes = str(cell.verdict.failed_phase), cell.verdict.margin_bytes or 0
    reached = units.size(cell.peaks_by_phase[phase].allocated_peak_bytes)
    says = f"does not fit with batch 1, runs out at {reached} in {phase}, needs {units.size(-margin_bytes)} more"
    assert file.getvalue().strip().endswith(f"  simulated: {says}, largest batch that fits: none")


# --- what a recorded history says of each allocation


def _alloc(address: int, size: int, time_us: int) -> dict[str, Any]:
    return {"action": "alloc", "addr": address, "size": size, "time_us": time_us}


def _free(address: int, time_us: int) -> dict[str, Any]:
    return {"action": "free_completed", "addr": address, "size": 0, "time_us": time_us}


def test_a_recorded_history_is_told_apart_by_what_is_there_at_the_ends_of_phases() -> None:
    trace = [
        _alloc(1, 512, 1),
        _alloc(2, 512, 2),
        _alloc(3, 1024, 12),
        _alloc(4, 1024, 13),
        _free(4, 14),
        _alloc(5, 8_519_680, 15),
        _alloc(4, 2048, 22),
        _free(3, 23),
        _alloc(3, 512, 32),
    ]
    boundaries = [
        _Boundary(10, {1: "parameters"}, 0, "inputs"),
        _Boundary(20, {}, 11, "activations"),
        _Boundary(30, {4: "gradients"}, 21, "optimizer state"),
        _Boundary(40, {}, 31, "optimizer state"),
    ]
    blocks = [{"address": address, "size": 512} for address in (1, 2, 3, 4, 5, 6)]
    content = {"device_traces": [trace], "segments": [{"blocks": blocks}]}
    assign_categories(content, 0, boundaries, 8_519_680)
    found = [entry["category"] for entry in trace if entry["action"] == "alloc"]
    expected = ["parameters", "inputs", "activations", "temporaries", "workspace", "gradients", "optimizer state"]
    assert found == expected
    assert [block.get("category") for block in blocks] == [
        "parameters",
        "inputs",
        "optimizer state",
        "gradients",
        "workspace",
        None,
    ]


def test_tensors_with_the_size_of_a_workspace_are_not_workspaces() -> None:
    """On Hopper, 32 MiB is the size of many a weight, activation, gradient and state of an optimizer."""
    size = 32 * 2**20
    trace = [
        _alloc(1, size, 1),  # a weight
        _alloc(8, size, 11),  # an activation that the first product reads, freed in backward
        _alloc(2, size, 11),  # the workspace of forward's thread
        _alloc(3, size, 12),  # an activation
        _alloc(4, size, 13),  # a workspace that its product releases at once
        _free(4, 14),
        _alloc(4, size, 21),  # the workspace of autograd's thread
        _alloc(5, size, 22),  # a gradient
        _free(3, 23),
        _free(8, 24),
        _alloc(6, size, 31),  # state
        _alloc(7, size, 51),  # the logits of the next step
    ]
    boundaries = [
        _Boundary(10, {1: "parameters"}, 0, "inputs"),
        _Boundary(20, {}, 11, "activations", "forward"),
        _Boundary(30, {5: "gradients"}, 21, "optimizer state", "backward"),
        _Boundary(40, {}, 31, "optimizer state", "optimizer"),
        _Boundary(60, {}, 41, "activations", "forward"),
    ]
    assign_categories({"device_traces": [trace], "segments": []}, 0, boundaries, size)
    found = [entry["category"] for entry in trace if entry["action"] == "alloc"]
    forward = ["activations", "workspace", "activations", "workspace"]
    backward = ["workspace", "gradients"]
    assert found == ["parameters", *forward, *backward, "optimizer state", "activations"]


def test_the_trial_of_attention_allocates_the_workspaces_of_both_threads() -> None:
    size = 32 * 2**20
    trace = [
        _alloc(1, size, 1),  # a weight
        _alloc(2, size, 2),  # a buffer
        _alloc(3, size, 3),  # the workspace of forward's thread
        _alloc(4, size, 4),  # the workspace of autograd's thread
        _alloc(5, size, 11),  # an activation
        _alloc(6, size, 21),  # what backward leaves
    ]
    boundaries = [
        _Boundary(10, {1: "parameters", 2: "inputs"}, 0, "inputs", "build"),
        _Boundary(20, {}, 11, "activations", "forward"),
        _Boundary(30, {}, 21, "gradients", "backward"),
    ]
    assign_categories({"device_traces": [trace], "segments": []}, 0, boundaries, size)
    found = [entry["category"] for entry in trace]
    assert found == ["parameters", "inputs", "workspace", "workspace", "activations", "gradients"]


def test_what_ranks_send_each_other_is_communication_unless_it_holds_parameters_or_gradients() -> None:
    """DDP's buckets are there before the first step; FSDP2 reduces into tensors that become gradients."""
    trace = [_alloc(1, 512, 1), _alloc(2, 512, 2), _alloc(3, 512, 12), _alloc(4, 512, 13)]
    boundaries = [
        _Boundary(10, {1: "parameters"}, 0, "inputs"),
        _Boundary(20, dict.fromkeys((1, 2, 3, 4), "communication"), 0, None),
        _Boundary(30, {4: "gradients"}, 11, "optimizer state"),
        _Boundary(40, dict.fromkeys((3, 4), "communication"), 0, None),
    ]
    assign_categories({"device_traces": [trace], "segments": []}, 0, boundaries, 8_519_680)
    assert [entry["category"] for entry in trace] == ["parameters", "communication", "communication", "gradients"]


# --- several ranks


def test_the_rank_on_which_memory_runs_out_is_that_of_the_cell_even_if_another_is_fuller() -> None:
    run = spec(ranks=(2,), strategy=("fsdp2",), mode=("train",))
    opening, started, *_, finished, closing = run_of(spec(simulate=("1GiB",)))
    (cell,) = run.cells()
    events: list[Event] = [opening.model_copy(update={"spec": run.model_dump(mode="json")})]
    events.append(started.model_copy(update={"cell": cell.key}))
    for rank, peak_bytes, fits in ((0, 900, True), (1, 700, False)):
        about = {"at_s": 0.0, "cell": cell.key, "source": "measured"}
        said: list[Event] = [
            PeakMeasured(
                **about,
                phase="backward",
                allocated_peak_bytes=peak_bytes,
                reserved_peak_bytes=1000,
                host_rss_peak_bytes=5000 + rank,
                outside_bytes=1,
                alloc_retries=0,
                by_category={"activations": peak_bytes},
            ),
            VerdictReached(
                **about,
                fits=fits,
                failed_phase=None if fits else "optimizer",
                failed_step=None,
                margin_bytes=None,
                detail=None,
            ),
        ]
        events += [OfRank(at_s=0.0, cell=cell.key, rank=rank, said=each) if rank else each for each in said]
    # Readings are of the first rank's GPU and of all processes.
    events.append(Reading(at_s=0.0, host_rss_bytes=2**40, device_used_bytes=2**40))
    events += [finished.model_copy(update={"cell": cell.key, "outcome": "oom"}), closing]
    record = memory_fold.fold(events)
    (found,) = record.cells
    assert (found.fullest_rank.rank, found.peak_allocated_bytes, found.host_rss_peak_bytes) == (1, 700, 5001)
    assert found.device_used_peak_bytes is None
    assert [rank.peak_allocated_bytes for rank in found.ranks] == [900, 700]
    (ranks,) = memory_tables.tables_for(record, ["ranks"])
    assert [[each.text for each in row if isinstance(each, Word)] for row in ranks.rows] == [
        ["fits"],
        ["no: optimizer"],
    ]
