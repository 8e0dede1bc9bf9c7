"""Values that do not depend on a model's weights: positions, masks, token ids, schedules.

A simulation has no values, but code of the user's may look at one to decide what to do next. Those that follow from
constants and inputs alone are computed beside the simulation, for small tensors; the others remain unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sysbench.lab.accounting import tensors_in

LARGEST = 1 << 16
"""Most elements of a tensor whose values are kept."""

_HOST = torch.device("cpu")
_VALUES = "_values_beside"


class KnownValues:
    """Computes the values of simulated tensors as far as they are known."""

    def __init__(self) -> None:
        self._lost: set[int] = set()
        """Storages of values that were overwritten with something unknown."""

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a simulated tensor, or None if they are not known."""
        values: Tensor | None = vars(tensor).get(_VALUES)
        return None if values is None or values.untyped_storage()._cdata in self._lost else values

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Compute what an operator does to values, which has returned simulated `result`s."""
        given = list(_simulated([*args, *kwargs.values()]))
        if not given and next(_simulated([result]), None) is None:
            return
        known = all(self.of(each) is not None for each in given)
        random = torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name
        if not known or random or any(each.numel() > LARGEST for each in _simulated([result])):
            self._forget(func, args, kwargs)
            return
        values = func(*self._real(args), **{name: self._real_of(each) for name, each in kwargs.items()})
        for ours, real in zip(tensors_in([result]), tensors_in([values]), strict=True):
            setattr(ours, _VALUES, real)

    def _forget(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Forget the values of everything that the operator has written to."""
        if not func._schema.is_mutable:
            return
        named = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | dict(kwargs)
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for each in _simulated([named.get(argument.name)]):
                    if (values := self.of(each)) is not None:
                        self._lost.add(values.untyped_storage()._cdata)

    def _real(self, values: Iterable[Any]) -> list[Any]:
        return [self._real_of(each) for each in values]

    def _real_of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.of(value) if _is_simulated(value) else value
        if isinstance(value, list | tuple):
            return type(value)(self._real(value))
        return _HOST if isinstance(value, torch.device) else value


def _is_simulated(tensor: Tensor) -> bool:
    return tensor.is_meta


def _simulated(values: Iterable[Any]) -> Iterator[Tensor]:
    return filter(_is_simulated, tensors_in(values))
