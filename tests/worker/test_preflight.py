"""Whether a cell will fit is said before it is started, by the same simulation that `memory` shows."""

import pytest

from sysbench.commands.time.spec import TimeCell
from sysbench.errors import UnavailableError
from sysbench.log.events import DeviceInfo
from sysbench.simulate.gpu import CONTEXT_BYTES, Gpu
from sysbench.simulate.memory import simulate
from sysbench.spec.model import Mode
from sysbench.worker.service import foresee
from tests.simulate.simulated_cells import cell

A100 = DeviceInfo(name="NVIDIA A100", type="cuda", memory_bytes=80 * 2**30, compute_capability="8.0")
TIMED = {"warmup": 0, "steps": 1, "until": None, "max_steps": 1, "sync": "phase"}
MODES: tuple[Mode, ...] = ("inference", "forward", "forward-backward", "train")


def of(mode: Mode, execution: str = "eager") -> TimeCell:
    fields = {**cell(mode=mode, execution=execution).model_dump(), **TIMED}
    return TimeCell.model_validate(fields)


@pytest.mark.parametrize("mode", MODES)
def test_it_fits_with_what_the_simulation_needs_and_not_with_less(mode: Mode) -> None:
    needed = simulate(of(mode), mode, Gpu("roomy", 2**40, (8, 0)))
    assert foresee(of(mode), A100, CONTEXT_BYTES + needed.reserved_peak_bytes).fits
    lacking = foresee(of(mode), A100, CONTEXT_BYTES + needed.allocated_peak_bytes - 2**20)
    assert lacking.fits is False
    assert lacking.lacking_bytes is not None
    assert lacking.lacking_bytes > 0
    assert str(lacking.detail).startswith("memory would run out ")


def test_each_mode_needs_more_than_the_one_before() -> None:
    needs = [simulate(of(mode), mode, Gpu("roomy", 2**40, (8, 0))).allocated_peak_bytes for mode in MODES]
    assert needs == sorted(set(needs))


def test_a_compiled_cell_cannot_be_foreseen() -> None:
    with pytest.raises(UnavailableError, match="compiled"):
        foresee(of("train", "compiled"), A100, 2**40)
