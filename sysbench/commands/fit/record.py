"""Events and record of `sysbench fit`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sysbench.commands.fit.spec import FitCell
from sysbench.log.events import Event
from sysbench.log.predictions import PredictedTime, Training, of_prediction, training
from sysbench.log.records import ModelCellRecord, RunRecord
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import (
    Amount,
    Bytes,
    Count,
    Flops,
    PerSecond,
    PositiveSeconds,
    Signed,
    stored_unless,
)
from sysbench.spec.steps import SearchAxis


class Trial(Frozen):
    """A step with some changes, simulated on a GPU."""

    gpu: str
    """The name that `--simulate` takes."""
    gpu_bytes: Bytes
    """Memory of the GPU, or the budget if that is smaller."""
    changes: dict[str, object]
    """Changed fields of the cell with their values; empty for the step as asked."""
    relearns: bool
    """Whether a change alters what the model learns."""
    ranks: Count
    fits: bool
    phase: str
    """Phase with the highest peak, or the one in which memory runs out."""
    margin_bytes: Signed
    """Free memory of the GPU at the peak; a negative number is the missing memory."""
    allocated_peak_bytes: Bytes
    by_category: dict[str, Count]
    """Allocated bytes by category at the peak, on a GPU with enough memory."""
    state_bytes: Bytes
    """Weights, gradients and optimizer state together, in the optimizer."""
    step: PredictedTime | None
    """Predicted time; None if the GPU's rates are unknown, or the time is withheld."""
    relative_s: Amount
    """Predicted seconds on this GPU, or on `FitCellRecord.reference` if its own rates are unknown: for the order."""
    tokens: Count
    """Tokens of a step over all ranks."""
    uncertainty_bytes: Bytes
    """Uncertainty of the simulated margin."""
    context_uncertainty_bytes: Bytes = stored_unless(0)
    """How much smaller the CUDA context may be than the largest size, which the margin counts."""
    recomputed_flops: Flops = 0
    """FLOPs that backward computes again."""
    compile_s: PositiveSeconds | None = stored_unless(None)
    """Processor time that the simulation of a compiled step took, nearly all of it in torch's compiler, which does not
    compile the kernels that it writes; None for an eager step."""

    @property
    def needed_bytes(self) -> int:
        """Memory that a GPU must have for the step, with CUDA's context and the allocator's cache."""
        return self.gpu_bytes - self.margin_bytes

    @property
    def is_safe(self) -> bool:
        """Whether the step fits with a margin that is larger than the uncertainty."""
        return self.fits and self.margin_bytes >= self.uncertainty_bytes

    @property
    def is_undecided(self) -> bool:
        """Whether the step fits only if the CUDA context is smaller than the largest size that is known of it."""
        return not self.fits and self.margin_bytes + self.context_uncertainty_bytes >= 0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all ranks; None without a predicted time."""
        return self.tokens / self.step.point_s if self.step else None


class CombinationTried(Trial, Event):
    """A combination of changes was simulated on a GPU; the first one on each GPU is the step as asked."""

    event: Literal["combination_tried"] = "combination_tried"
    cell: str


CauseKind = Literal[
    "parameters",
    "gradients",
    "optimizer state",
    "workspace",
    "communication",
    "attention scores",
    "softmax",
    "logits",
    "activations",
    "rest",
]


class Cause(Frozen):
    """A part of the peak of the step as asked."""

    kind: CauseKind
    module: str = stored_unless("")
    """Path of the modules that it belongs to, such as `layers.*.attention`, where they tell causes of a kind apart."""
    size_bytes: Bytes


class PeakExplained(Event):
    """The largest causes of the peak of the step as asked."""

    event: Literal["peak_explained"] = "peak_explained"
    cell: str
    phase: str
    allocated_peak_bytes: Bytes
    causes: list[Cause]
    reference: str
    """GPU whose predicted times order the combinations where those of a GPU are unknown."""


class Extent(Frozen):
    """The largest value of an axis with which the step fits on a GPU."""

    gpu: str
    gpu_bytes: Bytes
    """Memory of the GPU, or the budget if that is smaller."""
    axis: SearchAxis
    largest: Count
    """0 if no value fits."""
    safe: Count
    """Largest value with a margin that exceeds the uncertainty of the simulation."""
    refusal: str | None
    """Why the step cannot run on the GPU, or cannot have a larger value; None if it can."""


class ExtentFound(Extent, Event):
    """The search for the largest value of an axis has ended on a GPU."""

    event: Literal["extent_found"] = "extent_found"
    cell: str


class VerifiedStep(Frozen):
    """A step that was measured on the GPU itself."""

    gpu: str
    changes: dict[str, object]
    steps_s: list[PositiveSeconds]
    """Time of each step; empty if it failed."""
    allocated_peak_bytes: Bytes | None
    reserved_peak_bytes: Bytes | None
    failure: str | None
    """Why it was not measured; None if it was."""


class StepVerified(VerifiedStep, Event):
    """A suggestion was measured."""

    event: Literal["step_verified"] = "step_verified"
    cell: str


class SearchStopped(Event):
    """The search was stopped at its time limit, before its end."""

    event: Literal["search_stopped"] = "search_stopped"
    cell: str
    max_time_s: PositiveSeconds


class FitCellRecord(ModelCellRecord):
    """The answer to one question."""

    cell: FitCell = Field(alias="axes")

    source: Literal["simulated"] = "simulated"
    explained: PeakExplained | None
    trials: list[Trial]
    extents: list[Extent] = stored_unless([])
    """Largest batch sizes and context lengths, with --table."""
    verified: list[VerifiedStep] = stored_unless([])
    """With --verify: the first suggestion on each GPU that is here, as measured."""
    stopped_after_s: PositiveSeconds | None = stored_unless(None)
    """The time limit at which the search was stopped; None if it ended by itself."""
    price_per_hour: dict[str, PerSecond]
    """Price of a GPU hour by GPU, as given by the user."""
    training_tokens: Count | None
    """Tokens of the whole training, as given by the user."""

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(trial.gpu for trial in self.trials))

    def asked(self, gpu: str) -> Trial:
        return next(trial for trial in self.trials if trial.gpu == gpu and not trial.changes)

    def training(self, trial: Trial, tokens: int) -> Training | None:
        """Return the training on this many tokens; None without a predicted time."""
        if trial.step is None:
            return None
        price = self.price_per_hour.get(trial.gpu)
        return training(of_prediction(trial.step), tokens, trial.tokens, trial.ranks, price)


class FitRecord(RunRecord[FitCellRecord]):
    """The record of a run of `sysbench fit`."""

    kind: Literal["fit"] = "fit"
