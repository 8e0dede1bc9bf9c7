"""How a spec's field appears on the command line; the field itself holds the default and the help text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """Marks a field as a command-line option.

    `flags` are its spellings, the preferred one first (default: the field's name with dashes), `metavar` is the
    placeholder of its value, `panel` the heading under which it is listed, and `shorthands` are flags without a
    value that set one: `{"--bf16": "bf16"}`. A `positional` option needs no flag. A `repeated` option may be given
    several times, or as several arguments: its field gets a list of words; a `pair` takes the next two words,
    whatever they are. `values` are completions for a shell, if the field's type does not list them.
    """

    flags: tuple[str, ...] = ()
    metavar: str | None = None
    panel: str = "Options"
    shorthands: tuple[tuple[str, str], ...] = ()
    positional: bool = False
    repeated: bool = False
    pair: bool = False
    values: tuple[str, ...] = ()


CALLED_ELSEWHERE: Mapping[str, str] = {
    "ctx": "seq",
    "d-head": "dim",
    "seq-len": "ctx",
    "sequence-length": "ctx",
    "max-length": "ctx",
    "max-seq-len": "ctx",
    "context": "ctx",
    "block-size": "ctx",
    "bs": "batch",
    "micro-batch-size": "batch",
    "per-device-train-batch-size": "batch",
    "gradient-accumulation-steps": "grad-accum",
    "accumulate-grad-batches": "grad-accum",
    "gradient-accumulation": "grad-accum",
    "accumulation-steps": "grad-accum",
    "amp": "precision",
    "mixed-precision": "precision",
    "n-embd": "d-model",
    "embed-dim": "d-model",
    "intermediate-size": "d-ff",
    "n-layer": "layers",
    "num-hidden-layers": "layers",
    "n-head": "heads",
    "num-attention-heads": "heads",
    "vocab-size": "vocab",
    "attn-implementation": "attention",
    "torch-compile": "compile",
    "bucket-cap-mb": "bucket-mb",
    "reshard-after-forward": "reshard",
    "gpu": "simulate",
    "iters": "steps",
    "iterations": "steps",
    "warmup-steps": "warmup",
    "output-dir": "out",
    "output": "out",
}
"""Names that other tools use for options; messages suggest our name instead."""


def flag_of(field: str) -> str:
    """The long flag of a field: `d_model` is `--d-model`."""
    return "--" + field.replace("_", "-")
