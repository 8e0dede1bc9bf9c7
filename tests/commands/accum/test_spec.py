"""What can be asked of `sysbench accum`, and how each mistake is answered."""

from __future__ import annotations

import pytest

from sysbench.commands.accum.spec import DTYPES, AccumSpec
from sysbench.errors import UsageError
from sysbench.spec.cell import cell_of, spec_of
from sysbench.spec.command_options import validated


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"value": "0"}, "--value 0 cannot be summed"),
        ({"value": "1e300"}, "--value 1e300 is out of range; use a magnitude from 1e-30 to 1e30"),
        ({"value": "much"}, "--value much is not a number"),
        ({"count": "0"}, "--count 0 is out of range: it must be 1 to 100000000. Nearest: 1"),
        ({"count": "1e12"}, "--count 1000000000000 is out of range: it must be 1 to 100000000. Nearest: 100000000"),
        ({"count": "nan"}, "--count nan is not a whole number"),
        ({"count": "2.5"}, "--count 2.5 is not a whole number"),
        ({"dtype": "fp17"}, "--dtype fp17 is not a format. Did you mean fp16?"),
        (
            {"experiment": "norm", "dtype": "fp8-e4m3"},
            "--dtype fp8-e4m3 is not a format of norm; allowed: fp32, bf16, fp16",
        ),
        ({"order": "kahn"}, "--order kahn is not an order of summation. Did you mean kahan?"),
        ({"block": "1"}, "--block 1 is out of range: it must be 2 to 100000000. Nearest: 2"),
        ({"budget_s": "0"}, "--budget 0 is out of range: it must be more than 0"),
        ({"device": "tpu"}, "--device tpu is not a device."),
        ({"experiment": "autocast", "size": "toyy"}, "--size toyy is not a model. Did you mean toy?"),
        ({"experiment": "norm", "eps": "nan"}, "--eps nan is out of range: it must be 0 to 1"),
        ({"experiment": "norm", "width": "1"}, "--width 1 is out of range: it must be 2 to 1000000. Nearest: 2"),
    ],
)
def test_a_mistake_gets_one_line_that_names_it(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as complaint:
        validated(AccumSpec, given)
    assert str(complaint.value).startswith(said)
    assert "\n" not in str(complaint.value)


def test_without_options_the_sums_are_made_in_every_format() -> None:
    (cell,) = AccumSpec().cells()
    assert (cell.experiment, cell.value, cell.count, cell.dtypes) == ("sums", 0.01, 1000, DTYPES["sums"])


def test_all_is_every_experiment_once() -> None:
    assert [cell.experiment for cell in AccumSpec(experiment="all").cells()] == list(DTYPES)  # type: ignore[arg-type]


def test_of_the_formats_each_experiment_takes_those_it_is_about() -> None:
    given = {"experiment": "sums,norm", "dtype": "tf32,fp16"}
    assert [cell.dtypes for cell in validated(AccumSpec, given).cells()] == [("tf32", "fp16"), ("fp16",)]


def test_counts_may_be_written_with_powers_of_ten() -> None:
    assert validated(AccumSpec, {"count": "1e6"}).count == 1_000_000


def test_what_is_written_down_is_read_back_alike() -> None:
    spec = AccumSpec(experiment="all", size="toy,tiny")  # type: ignore[arg-type]
    assert spec_of(spec.model_dump(mode="json")) == spec
    for cell in spec.cells():
        assert cell_of(cell.model_dump(mode="json")) == cell


def test_only_a_transformer_has_a_step_whose_memory_is_a_question() -> None:
    by_size = {cell.size: cell.step for cell in AccumSpec(experiment="autocast", size="toy,tiny").cells()}  # type: ignore[arg-type]
    assert by_size["toy"] is None
    assert by_size["tiny"] is not None
    assert by_size["tiny"].phases == ("zero_grad", "forward", "loss", "backward")
