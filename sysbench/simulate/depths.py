"""The number of layers of a cell's model, which can be changed for the built-in model and for a Hugging Face config."""

from __future__ import annotations

import json
from typing import NamedTuple, TypeVar

from sysbench.spec.grid import ModelShape
from sysbench.spec.knobs import NONE, blocks_between_checkpoints
from sysbench.spec.model import GridCell

_LAYERS_OF_CONFIG = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Names of the number of layers in a Hugging Face config."""

_Cell = TypeVar("_Cell", bound=GridCell)


class Depths(NamedTuple):
    """Numbers of layers: of the two models that are simulated, and of the one that is derived from them."""

    small: int
    large: int
    whole: int

    @property
    def steps(self) -> int:
        """How many times the layers between the small and the large model lie between the small and the whole one."""
        return (self.whole - self.small) // (self.large - self.small)


def layers_of(cell: GridCell) -> int | None:
    """Return the number of layers; None for code of the user, in which it cannot be changed."""
    if cell.shape is not None:
        return cell.shape.layers
    return next(iter(_layers_in_config(cell).values()), None)


def with_layers(cell: _Cell, layers: int) -> _Cell:
    """Return a cell with another number of layers, which must be known."""
    model = cell.model
    if isinstance(model, ModelShape):
        return cell.model_copy(update={"model": model.model_copy(update={"layers": layers})})
    (name,) = _layers_in_config(cell)
    return cell.model_copy(update={"model": model.model_copy(update={"arguments": {**model.arguments, name: layers}})})


def depths_for_lines(cell: GridCell) -> Depths | None:
    """Return depths for lines through two shallow models; None if the whole step is as cheap, or has a fixed depth."""
    period = max(1, blocks_between_checkpoints(cell.checkpoint) // 2)
    small, large, whole = 2 * period, 4 * period, layers_of(cell)
    return Depths(small, large, whole) if whole is not None and small + large <= whole // 2 else None


def depths_for_copies(cell: GridCell) -> Depths | None:
    """Return depths of which the larger one has one more of the layers that repeat, and both have the same ends.

    What the compiler makes of the outer layers of a step is not like that of those between, of which the smaller depth
    has one or more. None if the whole step is about as cheap, or has a fixed depth, and for steps whose code the
    compiler orders in another way at every depth: inference, checkpoints, and adapters on a published model; several
    ranks were not tried.
    """
    whole = layers_of(cell)
    if whole is None or cell.strategy is not None or cell.mode == "inference" or cell.checkpoint != NONE:
        return None
    if cell.own is not None and cell.lora:
        return None
    return Depths(5, 6, whole) if whole >= 15 else None


def _layers_in_config(cell: GridCell) -> dict[str, int]:
    own = cell.own
    if own is None or not own.is_hugging_face:
        return {}
    config = {**json.loads(own.config.read_text()), **own.arguments}
    found = [(name, config[name]) for name in _LAYERS_OF_CONFIG if isinstance(config.get(name), int)]
    return dict(found[:1])
