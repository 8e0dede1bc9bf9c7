"""Tables of `sysbench fit`."""

from __future__ import annotations

import csv
import io
import re
import shlex
from functools import reduce

import pytest
from rich.console import Console

from sysbench.commands.fit.findings import of_run
from sysbench.commands.fit.live import FitScreen
from sysbench.commands.fit.record import Extent, FitRecord, VerifiedStep
from sysbench.commands.fit.suggestions import command
from sysbench.commands.fit.tables import sheet
from sysbench.commands.sheets import show
from sysbench.log.records import typed
from sysbench.render.dashboard.cell_lines import CellLines
from sysbench.spec import hardware
from tests import fixtures_runs
from tests.golden.compare import assert_golden, plain_environment  # noqa: F401

GIB = 1 << 30


def test_a_suggestion_that_is_modelled_says_so() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    trial = next(each for each in cell.trials if each.changes == {"precision": "bf16"})
    low_bit = trial.model_copy(update={"changes": {"optimizer": "adamw-8bit"}, "relearns": True})
    for trials, is_marked in ((cell.trials, False), ([*cell.trials[:2], low_bit], True)):
        shown = sheet(record.model_copy(update={"cells": [cell.model_copy(update={"trials": trials})]}))
        notes = [note for table in shown.tables for note in table.notes if note.startswith("modelled, not traced")]
        assert bool(notes) == is_marked


@pytest.mark.parametrize(("missing_mib", "is_undecided"), [(39, True), (40, False)])
def test_a_step_that_lacks_less_than_the_context_may_take_is_undecided(missing_mib: int, is_undecided: bool) -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    update = {"fits": False, "margin_bytes": -missing_mib << 20, "context_uncertainty_bytes": 39 << 20}
    asked = cell.trials[0].model_copy(update=update)
    cells = [cell.model_copy(update={"trials": [asked, *cell.trials[1:]]})]
    (said,) = (statement.text for statement in of_run(record.model_copy(update={"cells": cells})))
    assert said.startswith("rtx-4090: cannot tell whether the step fits as asked: 39.0 MiB more") == is_undecided
    assert ("0 B are to spare" in said) == is_undecided


def test_an_answer_that_takes_more_gpus_also_says_what_fits_without_them() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    asked = cell.trials[0].model_copy(update={"fits": False, "margin_bytes": -(1 << 33)})
    shared, relearned = (
        asked.model_copy(
            update={
                "fits": True,
                "margin_bytes": margin_gib << 30,
                "changes": changes,
                "ranks": ranks,
                "relearns": ranks == 1,
            }
        )
        for margin_gib, changes, ranks in (
            (2, {"ranks": 4, "strategy": "fsdp2"}, 4),
            (3, {"precision": "bf16-true"}, 1),
        )
    )
    (said,) = (
        statement.text
        for statement in of_run(
            record.model_copy(update={"cells": [cell.model_copy(update={"trials": [asked, shared, relearned]})]})
        )
        if statement.text.startswith(asked.gpu)
    )
    assert "It fits with 4 GPUs with fsdp2: 2.00 GiB to spare" in said
    assert said.endswith("On one GPU, it fits with bf16-true, which alters what the model learns: 3.00 GiB to spare.")


def test_a_search_that_tried_no_change_does_not_call_the_step_as_asked_the_nearest() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    asked = cell.trials[0].model_copy(update={"fits": False, "margin_bytes": -(1 << 33)})
    changed = asked.model_copy(update={"changes": {"optimizer": "fused"}, "margin_bytes": -(1 << 32)})
    for trials, names_nearest in (([asked], False), ([asked, changed], True)):
        updated = record.model_copy(update={"cells": [cell.model_copy(update={"trials": trials})]})
        said = " ".join(statement.text for statement in of_run(updated))
        assert "8.00 GiB more are needed" in said
        assert ("nearest is fused AdamW, which lacks 4.00 GiB" in said) == names_nearest
        assert "nearest is the step as asked" not in said


def test_where_nothing_fits_all_gpus_of_the_next_class_are_named_and_what_they_are_enough_for() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    missing = {"fits": False, "gpu_bytes": 24 * GIB, "margin_bytes": -(170 * GIB)}
    asked = cell.trials[0].model_copy(update=missing)
    nearest = asked.model_copy(update={"changes": {"optimizer": "fused"}, "margin_bytes": -(50 * GIB)})
    updated = record.model_copy(update={"cells": [cell.model_copy(update={"trials": [asked, nearest]})]})
    said = " ".join(statement.text for statement in of_run(updated))
    (found,) = re.findall(r"The smallest known GPUs that have enough for fused AdamW: (.*?) \(", said)
    named = found.split(", ")
    assert {"a100-80gb", "h100"} <= set(named)
    sizes = [hardware.by_name(name).memory_bytes for name in named]
    assert all(74 * GIB <= size <= min(sizes) * 1.02 for size in sizes)
    assert not any(74 * GIB <= card.memory_bytes < min(sizes) for card in hardware.available_gpus())


def test_a_search_that_did_not_end_does_not_say_that_nothing_fits() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    asked = cell.trials[0].model_copy(update={"fits": False, "margin_bytes": -(1 << 33)})
    tried = asked.model_copy(update={"changes": {"optimizer": "fused"}, "margin_bytes": -(1 << 32)})
    crashed = cell.model_copy(update={"trials": [asked, tried], "outcome": "crashed"})
    said = " ".join(each.text for each in of_run(record.model_copy(update={"cells": [crashed]})))
    assert "None of the 1 combinations tried so far fits: nearest is fused AdamW" in said
    assert "the search did not end: better changes may exist." in said


def test_a_record_names_a_gpu_that_this_machine_does_not_know() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord).model_dump_json(by_alias=True).replace("rtx-4090", "my-card")
    text = printed(FitRecord.model_validate_json(record), 200)
    assert "my-card: as asked" in text
    assert "--simulate my-card" in text


def answered() -> FitRecord:
    """The record of a question with everything that is asked beyond the search."""
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    first = next(trial for trial in cell.trials if trial.changes and not trial.relearns)
    verified = VerifiedStep(
        gpu=first.gpu,
        changes=first.changes,
        steps_s=[0.61, 0.6, 0.65],
        allocated_peak_bytes=first.allocated_peak_bytes + (1 << 20),
        reserved_peak_bytes=first.allocated_peak_bytes + GIB,
        failure=None,
    )
    failed = verified.model_copy(update={"steps_s": [], "allocated_peak_bytes": None, "failure": "out of memory"})
    whole = {
        "verified": [verified, failed],
        "price_per_hour": {"rtx-4090": 0.4},
        "training_tokens": 10**9,
    }
    spec = {**record.spec, "explain": True}
    return record.model_copy(update={"cells": [cell.model_copy(update=whole)], "spec": spec})


def with_extents() -> FitRecord:
    """The record of a question about all GPUs: one where all fits, one where little fits, one that cannot run it."""
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    limits = {"h100": (79, 99, 12_672, None), "rtx-3060": (12, 3, 256, None), "t4": (15, 0, 0, "bf16 needs sm80")}
    extents = [
        Extent(gpu=gpu, gpu_bytes=gib * GIB, axis=axis, largest=value, safe=value * 31 // 32, refusal=refusal)
        for gpu, (gib, batch, ctx, refusal) in limits.items()
        for axis, value in (("batch", batch), ("ctx", ctx))
    ]
    updated = cell.model_copy(update={"extents": extents, "trials": [], "explained": None})
    return record.model_copy(update={"cells": [updated], "spec": {**record.spec, "table": True}})


def test_causes_that_round_to_nothing_are_not_listed() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    assert cell.explained is not None
    large = cell.explained.causes[0]
    tiny = large.model_copy(update={"kind": "activations", "module": "attend", "size_bytes": 100})
    explained = cell.explained.model_copy(
        update={"causes": [large, tiny], "allocated_peak_bytes": large.size_bytes + 200}
    )
    shown = sheet(record.model_copy(update={"cells": [cell.model_copy(update={"explained": explained})]}), ["causes"])
    (table,) = shown.tables
    assert [row[0] for row in table.rows] == [large.kind]


def test_where_memory_runs_out_is_not_said_to_be_where_the_peak_is() -> None:
    record = answered()
    (cell,) = record.cells
    assert cell.explained is not None
    assert cell.explained.phase == "backward"
    asked = cell.trials[0].model_copy(update={"phase": "forward"})
    updated = cell.model_copy(update={"trials": [asked, *cell.trials[1:]]})
    (table,) = sheet(record.model_copy(update={"cells": [updated]}), ["explained"]).tables
    assert any(note.endswith("; peak in backward") for note in table.notes)


@pytest.mark.parametrize(
    ("gpu", "offload", "said"),
    [
        ("24GiB", "none", "its rates are unknown; the order is that of an a100-80gb"),
        ("h100", "optimizer", "the rate of its link to the host is unknown: give --host-link 25GB/s"),
        ("h100", "none", "the time of this step is withheld: sysbench time --simulate h100 says why"),
    ],
)
def test_a_missing_time_has_its_own_reason(gpu: str, offload: str, said: str) -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    question = cell.cell.model_copy(update={"on": (gpu,), "offload": offload})
    asked = cell.trials[0].model_copy(update={"gpu": gpu, "step": None})
    updated = cell.model_copy(update={"cell": question, "trials": [asked]})
    (table,) = sheet(record.model_copy(update={"cells": [updated]}), ["asked"]).tables
    assert f"{gpu}: no times, because {said}" in table.notes


def test_csv_has_every_simulated_combination_and_the_screen_has_not() -> None:
    record = answered()
    console = Console(file=io.StringIO(), width=80)
    show(record, console, "csv", ())
    assert isinstance(console.file, io.StringIO)
    rows = list(csv.DictReader(io.StringIO(console.file.getvalue())))
    (cell,) = record.cells
    assert [(row["gpu"], row["needed_bytes"]) for row in rows] == [
        (trial.gpu, str(trial.needed_bytes)) for trial in cell.trials
    ]
    assert "all simulated combinations" not in printed(record, 200)


@pytest.mark.parametrize("width", [80, 200])
def test_an_answer_looks_like_this(width: int) -> None:
    assert_golden(f"fit_{width}", printed(answered(), width))


@pytest.mark.parametrize("width", [80, 200])
def test_the_limits_of_all_gpus_look_like_this(width: int) -> None:
    assert_golden(f"fit_table_{width}", printed(with_extents(), width, "largest"))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_a_search_half_way_looks_like_this(width: int, height: int) -> None:
    events = fixtures_runs.stream("fit")[:-2]
    console = Console(file=io.StringIO(), width=width, height=height, legacy_windows=False)
    state = reduce(FitScreen.advance, events, FitScreen.initial)
    console.print(FitScreen(state, events[-1].at_s), end="")
    assert isinstance(console.file, io.StringIO)
    assert_golden(f"fit_live_{width}x{height}", console.file.getvalue())


def test_without_a_terminal_the_answer_as_asked_and_the_first_change_that_fits_are_said_at_once() -> None:
    said = io.StringIO()
    lines = CellLines(Console(file=said), view=FitScreen)
    for event in fixtures_runs.stream("fit")[:-2]:
        lines.show(event)
    assert said.getvalue().splitlines()[-2:] == [
        "rtx-4090  7.00 GiB missing as asked; peak as asked: attention scores 67%",
        "rtx-4090  12.0 GiB to spare, a step of 600.0 ms with sdpa attention, full checkpointing",
    ]


def printed(record: FitRecord, width: int, *tables: str) -> str:
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    show(record, console, "terminal", tables)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_printed_command_gives_a_model_of_ones_own_no_size_whose_dimensions_it_would_not_take() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    spec = {**record.spec, "size": ["small"], "model": ["hf:llama-3.2-1b"], "attention": ["own"]}
    trial = record.cells[0].trials[0]
    words = shlex.split(command(record.model_copy(update={"spec": spec}), trial))
    assert words[:2] == ["sysbench", "time"]
    assert "--model" in words
    assert "--size" not in words
