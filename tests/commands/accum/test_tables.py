"""Output of experiments on rounding: sentences that the numbers bear out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sysbench.commands.accum import tables as accum_tables
from sysbench.commands.accum.findings import finding, power
from sysbench.commands.accum.fold import _dtypes as types_of
from sysbench.commands.accum.record import (
    AccumCellRecord,
    DtypeSeen,
    DtypesMeasured,
    NormRecord,
)
from sysbench.commands.accum.spec import AccumSpec
from sysbench.render.table import Measure
from tests.commands.accum.cells import cell


def made(experiment: str, **found: Any) -> AccumCellRecord:
    nothing: dict[str, Any] = {"sums": [], "dtypes": [], "norms": []}
    return AccumCellRecord.model_validate(
        {
            "key": "x",
            "axes": next(AccumSpec(experiment=experiment, device="cpu").cells()).model_copy(update={"size": "toy"}),  # type: ignore[arg-type]
            "device": None,
            "outcome": "ok",
            "detail": None,
            "cautions": [],
            "experiment": experiment,
            **nothing,
            **found,
        }
    )


@pytest.mark.parametrize("experiment", ["sums", "autocast", "norm"])
def test_where_nothing_was_measured_nothing_is_said(experiment: str) -> None:
    assert finding(made(experiment)) is None
    assert not any(table(SimpleNamespace(cells=[made(experiment)])) for table in accum_tables.SHOWN)


def test_norm_that_never_breaks_is_not_said_to() -> None:
    holds = NormRecord(
        dtype="bf16",
        statistics="bf16",
        mean_overflows_from=None,
        variance_overflows_from=None,
        variance_vanishes_to=None,
        reciprocal_overflows_to=None,
        wrong_to=None,
        wrong_from=None,
        error_at_one=0.01,
        scales=[1.0],
        relative_errors=[0.01],
    )
    assert finding(made("norm", norms=[holds])) == "Layer norm in bf16 works up to the largest tested scale."


def test_layers_that_differ_are_all_named() -> None:
    """Here and on CUDA, in every layer but one."""
    names = [f"layers.{number}.norm" for number in range(3)]

    def seen(odd: str) -> list[DtypeSeen]:
        return [DtypeSeen(part="output", name=name, dtype=odd if name == names[1] else "float32") for name in names]

    measured = [
        DtypesMeasured(at_s=0, cell="x", precision="fp16", source="measured", seen=seen("float16")),
        DtypesMeasured(at_s=0, cell="x", precision="fp16", source="simulated", seen=seen("float32")),
    ]
    found = list(types_of(measured))
    assert [(each.name, each.here, each.on_cuda) for each in found] == [
        (names[0], "float32", "float32"),
        (names[1], "float16", "float32"),
        (names[2], "float32", "float32"),
    ]
    said = finding(made("autocast", dtypes=found))
    assert said is not None
    assert f"On this device, these dtypes differ: {names[1]}." in said


def test_scales_are_written_so_that_they_are_read() -> None:
    assert [power(scale) for scale in (1.0, 8.0, 65536.0, 2.0**59, 2.0**-13, 100.0)] == [
        "1",
        "8",
        "65536",
        "2^59",
        "2^-13",
        "100",
    ]


def test_the_finding_names_the_device_of_its_cell() -> None:
    assert "On this CPU, these dtypes differ: ln." in str(finding(cell("autocast")))


def test_every_number_of_a_sum_has_a_row_in_the_long_table() -> None:
    found = cell("sums", dtype="fp16", order="sequential")
    rows = {(subject, name): number for _, subject, name, number, _ in accum_tables.results(found)}
    for each in found.sums:
        way = f"fp32({each.addend})" if each.upcast else each.addend
        for name, value in each.model_dump(mode="json").items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                number = rows[f"{each.accumulator} += {way}, sequential", name]
                assert isinstance(number, Measure)
                assert number.value == value
