"""Predicted memory against the live bytes of real steps, counted storage by storage."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sysbench import formulas
from sysbench.formulas import peak_candidates
from sysbench.lab.step import TrainingStep
from sysbench.spec.grid import SIZES, ModelShape
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import AdamW, Mode
from tests.small_cells import SMALL_STEP

CPU = torch.device("cpu")
GIB = 2**30


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operators have made since it was entered and that are still referred to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._adopt(leaf.untyped_storage())
        return result

    def _adopt(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address not in self._known:
            self._known.add(address)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._drop, address, size)

    def _drop(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.live -= size


def peak_of_a_step(cell: ModelCell) -> int:
    """Peak of the second step: in the first one the optimizer's state is not there yet."""
    with LiveBytes() as memory:
        step = TrainingStep(cell, CPU)
        gc.collect()  # the first trial of attention in a process leaves reference cycles that hold its tensors
        for _ in range(2):
            step.forget()
            memory.peak = 0
            for _, phase in step.phases:
                phase()
    return memory.peak


def cell(shape: ModelShape, ctx: int, batch: int, **changes: Any) -> ModelCell:
    return ModelCell(**{**SMALL_STEP, "model": shape, "ctx": ctx, "batch": batch, **changes})


SHAPES = {
    "activations": (ModelShape(d_model=64, d_ff=224, layers=3, heads=4, vocab=300), 48, 5),
    "scores": (ModelShape(d_model=32, d_ff=64, layers=3, heads=4, vocab=50), 160, 2),
    "one-layer": (ModelShape(d_model=32, d_ff=128, layers=1, heads=4, vocab=50), 160, 2),
    "parameters": (ModelShape(d_model=128, d_ff=512, layers=4, heads=4, vocab=500), 16, 1),
    "vocabulary": (ModelShape(d_model=64, d_ff=128, layers=2, heads=2, vocab=5000), 16, 1),
    "logits": (ModelShape(d_model=64, d_ff=128, layers=2, heads=2, vocab=3000), 64, 4),
    "all-together": (ModelShape(d_model=96, d_ff=384, layers=3, heads=2, vocab=1000), 64, 2),
}
"""Shapes named after what fills most of their memory."""
ATTENDING = ("activations", "scores", "all-together")
"""Those in which the kind of attention makes a difference."""


def cells() -> Iterator[tuple[str, ModelCell]]:
    grid = itertools.product(SHAPES, get_args(Mode), ("fp32", "bf16"), ("naive", "sdpa", "math"))
    for name, mode, precision, attention in grid:
        if attention != "naive" and name not in ATTENDING:
            continue
        optimizers = get_args(AdamW) if (mode, attention) == ("train", "naive") else ("foreach",)
        for optimizer in optimizers:
            changes = {"mode": mode, "precision": precision, "attention": attention, "optimizer": optimizer}
            yield "-".join([name, *changes.values()]), cell(*SHAPES[name], **changes)


CELLS = dict(itertools.islice(cells(), 0, None, 3))
"""Every third combination: each value of each axis is among them, with most values of the others."""


@pytest.mark.parametrize("name", CELLS)
def test_predicted_memory_is_that_of_a_real_step(name: str) -> None:
    predicted = formulas.predicted_memory(CELLS[name]).total_bytes
    try:
        real = peak_of_a_step(CELLS[name])
    except RuntimeError as error:
        # PyTorch's own fault where ATEN_CPU_CAPABILITY takes instructions away that its oneDNN still finds.
        if "only supported when avx512 is supported" in str(error):
            pytest.skip(str(error))
        raise
    assert 0.95 * real <= predicted <= 1.10 * real, f"{predicted / real - 1:+.1%}"


def test_a_step_of_each_mode_needs_no_less_than_one_of_the_mode_before() -> None:
    modes: tuple[Mode, ...] = ("inference", "forward", "forward-backward", "train")
    needed = [formulas.predicted_memory(cell(SIZES["small"], 512, 4, mode=mode)).total_bytes for mode in modes]
    assert needed == sorted(needed)
    assert needed[0] < needed[1] < needed[3]


def test_what_training_holds_of_the_largest_model_is_four_times_its_weights() -> None:
    """12.69 GiB of weights; 50.77 GiB with gradients and AdamW's two moments."""
    resident = next(
        moment
        for moment in peak_candidates(cell(SIZES["2.7b"], 128, 1, optimizer="fused"))
        if moment.gradients_bytes == moment.parameters_bytes
    )
    assert resident.parameters_bytes / GIB == pytest.approx(12.69, abs=0.01)
    held = resident.parameters_bytes + resident.gradients_bytes + resident.optimizer_bytes
    assert held / GIB == pytest.approx(50.77, abs=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize(("precision", "attention"), [("fp32", "naive"), ("bf16", "sdpa")])
@pytest.mark.usefixtures("graphs_only", "einops_in_graphs")  # those of forward and backward decide what is saved
def test_compiled_models_save_what_is_predicted_for_them(precision: str, attention: str) -> None:
    shape, ctx, batch = SHAPES["activations"]
    shape = shape.model_copy(update={"layers": 1})  # the compiler takes as long for each as for the first
    compiled = cell(shape, ctx, batch, execution="compiled", mode="forward", precision=precision, attention=attention)
    step = TrainingStep(compiled, CPU)
    resident = {parameter.untyped_storage().data_ptr() for parameter in step.model.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in resident:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        dict(step.phases)["forward"]()
    assert step.output is not None
    real = sum(saved.values()) + step.output.untyped_storage().nbytes()
    after_forward = list(peak_candidates(compiled))[-1].activations_bytes
    assert 0.95 * real <= after_forward <= 1.10 * real, f"{after_forward / real - 1:+.1%}"
