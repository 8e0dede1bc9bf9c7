"""What a run found out about a model of the user's: an event, and what the record keeps of it."""

from __future__ import annotations

from typing import Literal

from sysbench.log.events import Event
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Count, Flops


class CodeFile(Frozen):
    """A file of the user's that was imported, as it was then."""

    target: str
    """As named: `package.module:Class`."""
    path: str | None
    """None if it is no file: a module of C."""
    sha256: str | None


class OwnModelFacts(Frozen):
    """A model of the user's as it ran."""

    class_name: str
    parameters: Count
    """Shared ones counted once."""
    trainable_parameters: Count
    """Those that are not frozen."""
    inputs: str
    """Where they come from: `get_inputs in gpt.py`, `token ids below 50257`."""
    loss: str | None
    """How it was computed: `output.loss`, `cross entropy of the logits`; None in a mode without a loss."""
    tokens: Count | None
    """In one step; None if the inputs are not token ids."""
    flops: dict[str, Flops] | None
    """Of one step by phase, counted operator by operator in a step without data; None if that was not possible."""
    uncounted: str | None
    """Why not."""
    files: list[CodeFile]
    printed: str
    """What the code printed while it was imported and the model was built; the beginning of it."""


class OwnModelBuilt(OwnModelFacts, Event):
    """A model of the user's is ready, or has taken its first step."""

    event: Literal["own_model_built"] = "own_model_built"
    cell: str
