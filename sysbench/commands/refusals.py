"""Mistakes in options that are refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from pydantic import BaseModel

from sysbench.command import Kind
from sysbench.commands.kinds import command_of
from sysbench.commands.showing import RecordOptions
from sysbench.errors import UsageError, unknown
from sysbench.spec.cell import RunSpec
from sysbench.spec.command_options import Given, option_name
from sysbench.spec.run import RunOptions

# Modules that are not needed to refuse a bad option are imported where they are used, so that mistakes are reported
# at once.


def refuse_unwritable(kind: Kind, options: RunOptions) -> None:
    command_of(kind).launch().refuse_files(options)


def refuse_unsupported_figure(path: Path | None) -> None:
    """Raise UsageError if the file given to `--figure` has no supported image extension."""
    from sysbench.render.plots import FORMATS

    if path is not None and path.suffix.lower().removeprefix(".") not in FORMATS:
        raise UsageError(f"--figure {path} must end in {', '.join(f'.{name}' for name in FORMATS)}")


def refuse_invalid_output(spec: RunSpec, options: RunOptions) -> None:
    """Raise UsageError for an unknown table, column or file format, and OutputError if a file cannot be written."""
    refuse_unknown_tables(spec.kind, options)
    refuse_unknown_columns(spec, options)
    refuse_unwritable(spec.kind, options)


def refuse_unknown_tables(kind: Kind, options: RecordOptions) -> None:
    if not options.tables:
        return
    tables = command_of(kind).results().tables
    for name in options.tables:
        if name not in tables:
            raise UsageError(f"--tables {unknown(name, 'a table', tables)}")


def refuse_missing_extras(spec: RunSpec, options: RunOptions) -> None:
    """Raise UsageError if an optional package is missing; where cells run elsewhere, the workers there look."""
    if options.on:
        return
    from sysbench import extras
    from sysbench.spec.knobs import FP8, NONE, QUANTIZED

    models: Sequence[str] = getattr(spec, "model", ())
    needed = [
        *([extras.TRANSFORMERS] if any(model.startswith("hf:") for model in models) else []),
        *([extras.PEFT] if any(getattr(spec, "lora", ())) else []),
        *([extras.FP8] if any(each in FP8 for each in getattr(spec, "precision", ())) else []),
    ]
    # A simulation knows what they store.
    measured = extras.of_optimizers(getattr(spec, "optimizer", ()))
    measured += [extras.BITSANDBYTES] if {*QUANTIZED} - {NONE} & {*getattr(spec, "quantize", ())} else []
    measured += [extras.OFFLOAD] if "optimizer" in getattr(spec, "offload", ()) else []
    if measured and any(cell.simulated is None for cell in islice(spec.cells(), 1)):
        needed += measured
    for extra in needed:
        if complaint := extras.missing(*extra):
            raise UsageError(complaint)


def refuse_unknown_columns(spec: RunSpec, options: RunOptions) -> None:
    if not options.columns:
        return
    from sysbench.commands import sheets

    sheets.refuse_unknown_columns(options.columns, spec, options.tables, options.format)


def refuse_spec_with_source(spec: type[BaseModel], given: Given) -> None:
    """Raise UsageError if options of a new run are combined with `--from`, where they would have no effect."""
    if given:
        names = ", ".join(option_name(spec, field) for field in given)
        raise UsageError(f"--from shows a finished run; {names} would have no effect")
