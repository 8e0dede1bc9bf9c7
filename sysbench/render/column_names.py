"""Which columns a run could have, known before it has begun: what `--columns` may name.

Declared tables know. For tables that are not declared yet names are written down here, each as `key:title:group` where
title and group differ from the key; `{ctx}` stands for each value that the run has on that axis.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sysbench.cells import CHOICES
from sysbench.command import Kind, measuring
from sysbench.errors import UsageError
from sysbench.render import chosen_columns
from sysbench.render.chosen_columns import Name, is_known
from sysbench.render.declared import DeclaredTable
from sysbench.spec.cell import RunSpec
from sysbench.spec.run import Format

_WORK = "time work bytes rate peak:of_peak bandwidth:of_bandwidth bound:bound_by"
_HOST_USE = "self_host:itself:host_per_step total_host:with_callees:host_per_step"
_DEVICE_USE = "self_device:itself:device_per_step total_device:with_callees:device_per_step"
_TIMES = ("forward", "backward")


def _per_time(template: str) -> str:
    return " ".join(template.replace("TIME", phase) for phase in _TIMES)


WRITTEN: Mapping[Kind, Mapping[str, str]] = {
    "attention": {
        "sweep": "forward backward memory_before_backward:before_backward:memory status",
        "comparison": _per_time(
            "TIME:median:TIME TIME_to_best:to_best:TIME TIME_rate:rate:TIME TIME_moved:moved:TIME "
            "TIME_limit:of_limit:TIME"
        )
        + " saved:kept_for_backward memory_before_backward:before_backward peak:allocated:peak "
        "peak_reserved:reserved:peak error gradient_error:of_gradients kernel:ran_as",
        "grid": "seq_{seq}:{seq}:seq_len",
        "exponents": "exponent scatter sizes:over",
        "crossovers": "overtakes:from_there_on_faster overtaken:than at:near_n bracket:measured_between",
        "frontier": "fits:largest_n_that_fits before_backward:with_before_backward beyond:does_not_fit needs available "
        "how:known_by",
        "accounting": "shape dtype:type phase:made_in size forward naive:two_n_n_tensors inputs:q_k_v_and_output",
        "memory": "memory_before_backward:before_backward saved:kept_for_backward naive:two_n_n_tensors "
        "saved_of_naive:of_these fused:one_number_a_query peak:allocated:peak peak_reserved:reserved:peak",
        "cells": "causal source device_name kernel "
        + _per_time("TIME TIME_median TIME_rate TIME_limit:TIME_of_limit")
        + " memory_before_backward saved:kept_for_backward peak error status",
    },
}
"""Of every table that is not declared, without its axes."""

_COMPARING = (*CHOICES, "warmup", "device")
"""Axes with a table of their own, which is shown where their values differ."""


def names_in(kind: Kind, table: str, spec: RunSpec | None = None) -> tuple[Name, ...]:
    """The columns that a table can have beside its axes; with a spec, those whose names come from its values too."""
    values, declared = _values(spec), measuring(kind).part("tables")[table]
    if isinstance(declared, DeclaredTable):
        return tuple(dict.fromkeys(declared.names(values)))
    return tuple(dict.fromkeys(name for written in WRITTEN[kind][table].split() for name in _filled(written, values)))


def refuse_unknown(names: Sequence[str], spec: RunSpec, tables: Sequence[str], form: Format) -> None:
    """Raise UsageError for a column that the tables that will be shown of a run cannot have; before it is made."""
    if not names:
        return
    known = _of_tables(spec, tables, form)
    for name in names:
        elsewhere = [
            table for table in measuring(spec.kind).part("tables") if is_known(name, names_in(spec.kind, table, spec))
        ]
        if elsewhere and not is_known(name, known):
            which = f"the table{'' if len(elsewhere) == 1 else 's'} {', '.join(elsewhere)}"
            raise UsageError(f"--columns {name} is in {which}: add --tables {elsewhere[0]}")
    chosen_columns.refuse_unknown(names, known)


def shows(key: str, names: Sequence[str], spec: RunSpec, tables: Sequence[str], form: Format) -> bool:
    """Whether what will be shown of a run can have the column with this key, given the `names` on the command line."""
    columns = [name for name in _of_tables(spec, tables, form) if name.key == key]
    instead = [name for name in names if not name.startswith(chosen_columns.ADDED)]
    return bool(columns) if not instead else any(chosen_columns.is_any(name, columns) for name in names)


def possible(kind: Kind, tables: Sequence[str]) -> list[Name]:
    """The columns of these tables, or of all that a command has, which a run may have or not."""
    return [name for table in tables or measuring(kind).part("tables") for name in names_in(kind, table)]


def shown_tables(spec: RunSpec) -> tuple[str, ...]:
    """The tables that are shown of a run of this spec where nobody asks for others."""
    match spec.kind:
        case "time":
            comparing = {"device": "devices"}
            differing = (axis for axis in _COMPARING if len(getattr(spec, axis)) > 1)
            return ("summary", *(comparing.get(axis, axis) for axis in differing))
        case "memory":
            return ("phases", "largest") if len(list(spec.cells())) == 1 else ("summary", "grid")
        case "profile":
            return ("summary", "device", "classes", "tree", "attention", "kernels")
        case "attention":
            return ("comparison",) if len({cell.implementation for cell in spec.cells()}) > 1 else ("sweep",)
        case _:
            return ("sums", "formats", "dtypes", "norm", "scaling", "matmul")


def _of_tables(spec: RunSpec, tables: Sequence[str], form: Format) -> list[Name]:
    """The columns of the tables that will be shown of a run of this spec, asked for or not."""
    shown = tables or ((measuring(spec.kind).long_table,) if form == "csv" else shown_tables(spec))
    return [name for table in shown for name in names_in(spec.kind, table, spec)]


def _values(spec: RunSpec | None) -> dict[str, list[str]]:
    """What stands for a name in braces: the values of each axis, the phases of the steps."""
    values: dict[str, list[str]] = {"source": ["measured", "simulated"]}
    cells: Sequence[Any] = list(spec.cells()) if spec is not None else []
    for cell in cells:
        for axis, value in cell.model_dump().items():
            if isinstance(value, int | str):
                known = values.setdefault(axis, [])
                if str(value) not in known:
                    known.append(str(value))
    phases = dict.fromkeys(phase for cell in cells for phase in getattr(cell, "phases", ()))
    return {**values, "phase": [*phases, "step"], "device": ["cpu", "mps", "cuda", *values.get("device", [])]}


def _filled(written: str, values: Mapping[str, Sequence[str]]) -> Iterator[Name]:
    """A name for each combination of the values that it has places for."""
    places = list(dict.fromkeys(place for _, place, _, _ in string.Formatter().parse(written) if place))
    for combination in itertools.product(*(values.get(place, ()) for place in places)):
        parts = written.format(**dict(zip(places, combination, strict=True))).split(":")
        yield Name(*parts)
