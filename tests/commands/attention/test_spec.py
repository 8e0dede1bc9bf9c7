"""What a run of `sysbench attention` consists of."""

from __future__ import annotations

import pytest

from sysbench.commands.attention.spec import WHOLE_GRID, AttentionSpec


def _grid(**given: object) -> set[tuple[int, int]]:
    return {(cell.dim, cell.seq) for cell in AttentionSpec(**given).cells()}  # type: ignore[arg-type]


def test_a_sweep_is_the_grid_of_the_reports() -> None:
    found = _grid(sweep=True)
    assert found == {(dim, seq) for dim in (16, 32, 64, 128) for seq in (256, 1024, 4096, 8192, 16384)}
    spec = AttentionSpec(sweep=True)
    assert (spec.batch, spec.heads, spec.causal, spec.repeats) == ((8,), (), False, 100)


@pytest.mark.parametrize(
    ("given", "dims", "lengths"),
    [
        ({"dim": "64"}, {64}, set(WHOLE_GRID["seq"])),
        ({"seq": "128,512"}, set(WHOLE_GRID["dim"]), {128, 512}),
        ({"dim": "8-32*2", "seq": "64"}, {8, 16, 32}, {64}),
    ],
)
def test_what_is_given_by_name_wins_over_the_sweep(given: dict[str, str], dims: set[int], lengths: set[int]) -> None:
    assert _grid(sweep=True, **given) == {(dim, seq) for dim in dims for seq in lengths}


def test_without_a_sweep_a_run_is_small() -> None:
    assert _grid() == {(64, 256), (64, 1024)}


def test_a_run_that_is_resumed_has_the_cells_it_had() -> None:
    for spec in (AttentionSpec(sweep=True), AttentionSpec(sweep=True, dim=(64,)), AttentionSpec(sweep=False)):
        again = AttentionSpec.model_validate(spec.model_dump(mode="json"))
        assert [cell.key for cell in again.cells()] == [cell.key for cell in spec.cells()]


def test_a_simulation_is_not_measured_on_a_device_and_takes_its_kernels_from_the_gpu() -> None:
    cells = list(AttentionSpec(simulate=("a100-80gb", "24GiB"), seq=(64,)).cells())
    assert [(cell.simulate, cell.device) for cell in cells] == [("a100-80gb", "cpu"), ("24GiB", "cpu")]
    simulated, measured = (
        next(AttentionSpec(precision=("fp16",), **where).cells())
        for where in ({"simulate": ("a100-80gb",)}, {"device": ("cpu",)})
    )
    assert simulated.problem("cpu") is None
    assert "not supported on the CPU" in str(measured.problem("cpu") or "")
    with pytest.raises(ValueError, match="--simulate measures nothing"):
        AttentionSpec(simulate=("a100-80gb",), device=("cpu",))
