"""Cells and specs of all commands that run a Transformer: the cells are the product of the axes of the spec."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from sysbench.errors import Refusal
from sysbench.spec import published
from sysbench.spec.axes import Sizes, integers, split_words
from sysbench.spec.axis import Axis, axes_of_model, in_order_of_names, value_if_not_stored
from sysbench.spec.cell import DeviceType, RunCell, RunSpec, asks_for, threads_problem
from sysbench.spec.grid import DEFAULT_VOCAB, MODE, SIZES, GridFields, ModelShape
from sysbench.spec.knobs import NONE
from sysbench.spec.options import MODEL, OWN_MODEL, STEP, Option, flag_of
from sysbench.spec.own_model import Arguments, Code, Inputs, OwnModel, Targets
from sysbench.spec.problems import (
    ATTENTION_ON,
    knobs_device_problem,
    knobs_problem,
    knobs_problem_of,
    precision_problem,
    ranks_problem,
)
from sysbench.spec.quantities import stored_unless
from sysbench.spec.ranks import Strategy
from sysbench.spec.steps import PHASES_OF, Mode, Phase


class GridCell(GridFields):
    """A point of a grid, with the training step that it runs and the reasons why it cannot."""

    @property
    def step(self) -> ModelCell:
        """The training step that the cell runs."""
        raise NotImplementedError

    @property
    def workers(self) -> int:
        """Number of workers that measure the cell together, one for each rank; 1 for a simulation."""
        return 1 if self.simulated is not None else self.ranks

    def step_with(self, **changed: object) -> ModelCell:
        """Return the training step of this cell, with other values for some of its fields."""
        return ModelCell(**{name: getattr(self, name) for name in ModelCell.model_fields} | changed)

    @property
    def comparability_key(self) -> tuple[str, ...]:
        """Properties that two cells must share for their extents to be comparable."""
        own = () if self.own is None else (self.own.model_dump_json(),)
        return (*(str(self.axis_value(axis)) for axis in (*CHOICES, "grad_accum", "ranks")), *own)

    def problem(self, device: DeviceType | None) -> Refusal | None:
        """Return the reason why this cell cannot run, or None if it can."""
        device = "cuda" if self.simulated else device
        precision_reason = precision_problem(self.precision, device) if device else None
        return (
            self.model.problem()
            or precision_reason
            or (knobs_device_problem(self, device) if device else None)
            or knobs_problem_of(self)
            or threads_problem(self, device)
            or ranks_problem(self)
        )

    def unavailable(self, device: DeviceType) -> Refusal | None:
        """Return why the device does not support this combination of attention and precision; None if it does."""
        device = "cuda" if self.simulated else device
        given = f"--attention {self.attention}"
        there = f"available on {device}: {', '.join(ATTENTION_ON.get(device, ()))}"
        if self.attention in ("efficient", "cudnn") and device != "cuda":
            return Refusal("is a CUDA kernel", there, given)
        if self.attention in ("flash", "flex") and device == "mps":
            return Refusal("is not available on mps", there, given)
        if self.attention in ("flash", "cudnn") and device == "cuda" and self.compute_precision in ("fp32", "tf32"):
            return Refusal("takes 16-bit inputs", "use --precision bf16, or --attention efficient", given)
        return None


@asks_for(GridCell)
class ModelSpec(RunSpec):
    """The axes of a run of Transformers, each a tuple of values; the cells of the run are the product of all axes."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, validate_default=True)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the values for a field of the cells."""

    model: Annotated[
        Targets,
        Option(metavar="MODEL,…", panel=OWN_MODEL, values=published.names(), common=True, names_code=True),
    ] = stored_unless(
        (),
        description="Measure another model instead: a published one (llama-3.1-8b; sysbench models lists them), "
        "hf:ORGANISATION/NAME or hf:DIRECTORY with a config.json, package.module:Class, or path/to/file.py:factory.",
    )
    model_arg: Annotated[Arguments, Option(metavar="NAME=AXIS", panel=OWN_MODEL, repeated=True)] = stored_unless(
        {},
        description="A constructor argument of --model, or a field of its config: layers=12,24. Can be repeated.",
    )
    input: Annotated[Inputs, Option(metavar="CODE|SHAPE", panel=OWN_MODEL, repeated=True, names_code=True)] = (
        stored_unless(
            (),
            description="A function of (batch, ctx) that returns the model's inputs: a tensor, a tuple, or a dict; or "
            "a description of one input, which can be repeated: tokens=int64[B,T]<vocab, image=float32[B,3,224,224]. "
            "Default: get_inputs beside the model, or else token ids for its first embedding.",
        )
    )
    loss: Annotated[Code | None, Option(metavar="CODE", panel=OWN_MODEL, names_code=True)] = stored_unless(
        None,
        description="A function of (output) or (output, inputs) that returns the loss. Default: output.loss, cross "
        "entropy of the logits, or the mean of the output.",
    )
    app_dir: Annotated[str, Option(metavar="DIRECTORY", panel=OWN_MODEL, names_code=True)] = stored_unless(
        "",
        description="Directory to import your code from, instead of the current directory.",
    )
    d_model: Annotated[
        tuple[int, ...],
        BeforeValidator(integers(2)),
        Option(flags=("--d-model", "--hidden-size"), metavar="AXIS", panel=MODEL),
    ] = Field(default=(), description="Width of the residual stream; overrides --size.")
    d_ff: Annotated[Sizes, Option(metavar="AXIS", panel=MODEL)] = Field(
        default=(), description="Width inside the feed-forward block; overrides --size."
    )
    layers: Annotated[Sizes, Option(flags=("--layers", "--num-layers"), metavar="AXIS", panel=MODEL)] = Field(
        default=(), description="Number of Transformer blocks; overrides --size."
    )
    heads: Annotated[Sizes, Option(flags=("--heads", "--num-heads"), metavar="AXIS", panel=MODEL)] = Field(
        default=(), description="Attention heads per block; overrides --size."
    )
    vocab: Annotated[tuple[int, ...], BeforeValidator(integers(2)), Option(metavar="AXIS", panel=MODEL)] = Field(
        default=(DEFAULT_VOCAB,), description="Vocabulary size."
    )

    @model_validator(mode="before")
    @classmethod
    def _own_model_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("model"):
            return given
        fields = {"attention": "own", **given}
        default = cls.model_fields["size"].default
        shape = SIZES[default[0]].model_dump(exclude={"vocab"})
        if split_words(fields.get("size", ())) == default and not fields.keys() & shape.keys():
            # The default size would mean the model's own dimensions; if the user requests it, list its dimensions.
            return {**fields, **shape}
        return fields

    @property
    def is_distributed(self) -> bool:
        """Whether the run has cells with several ranks."""
        return any(ranks > 1 for ranks in self.ranks)

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """The strategies of cells with several ranks; default: ddp."""
        return self.strategy or ("ddp",)

    @model_validator(mode="after")
    def _refuse_problems(self) -> Self:
        if (problem := self._ranks_problem() or self._adapters_problem() or self._own_model_problem()) is not None:
            raise ValueError(problem)
        return self

    def _ranks_problem(self) -> Refusal | None:
        knobs = {name: getattr(self, name) for name in KNOBS}
        for name, values in {"strategy": self.strategy, **knobs}.items():
            if values and not self.is_distributed:
                given = f"{flag_of(name)} {','.join(map(str, values))}"
                return Refusal("distributes a model over ranks", "add --ranks 2", given)
        if self.no_sync and max(self.grad_accum) == 1:
            return knobs_problem(self.strategies, knobs, KNOBS) or Refusal(
                "controls the exchange of gradients between micro-batches, but each step has only one",
                "add --grad-accum 2",
                f"--no-sync {','.join(self.no_sync)}",
            )
        return knobs_problem(self.strategies, knobs, KNOBS)

    def _adapters_problem(self) -> Refusal | None:
        if any(self.adapter) and not any(self.lora):
            given = f"--adapter {','.join(filter(None, self.adapter))}"
            return Refusal("is a kind of adapter", "add --lora 8", given)
        if self.lora_targets and not any(self.lora):
            given = f"--lora-targets {','.join(self.lora_targets)}"
            return Refusal("chooses layers for adapters", "add --lora 8", given)
        if set(self.quantize) - {NONE} and not any(self.lora):
            given = f"--quantize {','.join(self.quantize)}"
            return Refusal("freezes weights, which leaves nothing to train", "add --lora 8", given)
        return None

    def _own_model_problem(self) -> Refusal | None:
        if self.model:
            code = next((each for each in self.input if isinstance(each, str)), None)
            refusal = Refusal("makes all inputs of the model", "give no other --input", f"--input {code}")
            return refusal if code and len(self.input) > 1 else None
        given = {
            "--model-arg": self.model_arg,
            "--input": self.input,
            "--loss": self.loss,
            "--attention own": "own" in self.attention,
            "--optimizer module:factory": any(":" in each for each in self.optimizer),
        }
        option = next((option for option, value in given.items() if value), None)
        needs_model = "applies to a model of your own"
        return Refusal(needs_model, "add --model package.module:Class", option) if option else None

    def grid(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of every grid point: a value for each axis that applies to the point, and the settings."""
        declared = axes_of_model(self.cell_class)
        fixed = {name: getattr(self, name) for name, axis in declared.items() if axis.role == "setting"}
        axes = {name: axis for name, axis in declared.items() if name not in fixed}
        names = sorted(axes, key=lambda name: name not in ModelSpec.model_fields)  # a command's own axes vary fastest
        listed = {name: self._values(name) for name in names}
        dependent = [name for name in names if axes[name].applies_to and listed[name] != (None,)]
        fixed |= {name: values[0] for name, values in listed.items() if len(values) == 1}
        varying = {name: values for name, values in listed.items() if name not in fixed}
        determining = {other for name in dependent for other, _ in axes[name].applies_to} & varying.keys()
        unused_at: dict[tuple[object, ...], dict[str, None]] = {}
        for values in itertools.product(*varying.values()):
            point = dict(zip(varying, values, strict=True))
            key = tuple([point[name] for name in determining])
            if (unused := unused_at.get(key)) is None:
                point = {**fixed, **point}
                unused = dict.fromkeys(name for name in dependent if not self._applies(axes, name, point))
                unused_at[key] = unused
            if not any(name in varying and point[name] != varying[name][0] for name in unused):
                point = {**fixed, **point, **unused}
                point["size"], point["model"] = point["size"]
                yield point

    def _values(self, axis: str) -> tuple[Any, ...]:
        match axis:
            case "size":
                return tuple(self._models())
            case "strategy":
                return self.strategies
        values: tuple[Any, ...] = getattr(self, axis)
        return values or (() if type(self).model_fields[axis].default else (None,))

    def _applies(self, axes: Mapping[str, Axis], name: str, point: Mapping[str, Any]) -> bool:
        return all(
            self._applies(axes, other, point)
            and (
                point[other] in values
                if values
                else point[other] != value_if_not_stored(type(self).model_fields[other])
            )
            for other, values in axes[name].applies_to
        )

    def _models(self) -> Iterator[tuple[str, ModelShape | OwnModel]]:
        if not self.model:
            yield from self._shapes().items()
            return
        names = ("d_model", "d_ff", "layers", "heads", "vocab")
        given = tuple(name for name in names if getattr(self, name) != type(self).model_fields[name].default)
        sized = self.size != type(self).model_fields["size"].default or set(names[:4]) <= set(given)
        single = () if sized else given
        swept = [name for name, values in self.model_arg.items() if len(values) > 1]
        for target, (label, shape), values in itertools.product(
            self.model, self._shapes().items(), itertools.product(*self.model_arg.values())
        ):
            arguments = dict(zip(self.model_arg, values, strict=True))
            own = OwnModel(
                target=target,
                arguments=arguments,
                dimensions=shape.model_dump(),
                sized=sized,
                single_dimensions=single,
                inputs=next((each for each in self.input if isinstance(each, str)), None),
                described=tuple(each for each in self.input if not isinstance(each, str)),
                loss=self.loss,
                directory=self.app_dir,
            )
            named = [label] if sized else [f"{name}={getattr(shape, name)}" for name in single]
            yield " ".join([own.title, *named, *(f"{name}={arguments[name]}" for name in swept)]), own

    def _shapes(self) -> dict[str, ModelShape]:
        given = {name: values for name in ("d_model", "d_ff", "layers", "heads") if (values := getattr(self, name))}
        labelled: dict[str, ModelShape] = {}
        for size, vocab in itertools.product(self.size, self.vocab):
            for values in itertools.product(*given.values()):
                overrides = dict(zip(given, values, strict=True))
                swept = {name: value for name, value in overrides.items() if len(given) < 4 or len(given[name]) > 1}
                shape = SIZES[size].model_copy(update=overrides)
                named = "custom" if len(given) == 4 and (swept or shape != SIZES[size]) else size
                if len(self.vocab) > 1:
                    swept["vocab"] = vocab
                label = " ".join([named, *(f"{name}={value}" for name, value in swept.items())])
                labelled[label] = shape.model_copy(update={"vocab": vocab})
        return labelled


STEP_AXES: Mapping[str, Axis] = in_order_of_names(
    {name: axis for name, axis in axes_of_model(GridCell).items() if axis.role not in ("device", "setting")}
)
"""Axes that identify a training step, besides its mode, in the order of names."""

CHOICES = tuple(name for name, axis in STEP_AXES.items() if axis.role == "choice")
"""Axes that choose how a training step is computed, the most frequently compared first."""

KNOBS: Mapping[str, tuple[object, ...]] = {
    name: strategies for name, axis in STEP_AXES.items() if (strategies := dict(axis.applies_to).get("strategy"))
}
"""Axes that apply only to some strategies, with those strategies."""


class ModelCell(GridCell):
    """A cell whose step is the fixed sequence of phases of its mode."""

    mode: Annotated[Mode, MODE, Option(metavar="MODE,…", panel=STEP, common=True)] = Field(
        description=f"Which phases a step has: {', '.join(get_args(Mode))}."
    )

    @property
    def comparability_key(self) -> tuple[str, ...]:
        """Properties that two cells must share for their extents to be comparable."""
        return (self.mode, *super().comparability_key)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the cell's mode, in order."""
        return PHASES_OF[self.mode]

    @property
    def step(self) -> ModelCell:
        """The training step that the cell runs: the cell itself."""
        return self


def step_of(cell: RunCell) -> ModelCell | None:
    """Return the training step that a cell runs; None if it runs none."""
    step = cell.step
    return step if isinstance(step, ModelCell) else None
