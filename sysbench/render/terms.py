"""Definitions of the terms in tables, as a report lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sysbench.log.records import CellRecord

_MODE_MEANINGS: Mapping[str, str] = {
    "inference": "forward only, without a graph.",
    "forward": "forward with the graph kept, as in training.",
    "forward-backward": "zero_grad, forward, loss and backward; no optimizer.",
    "train": "zero_grad, forward, loss, backward and optimizer: a full step.",
}
_PRECISION_MEANINGS: Mapping[str, str] = {
    "fp32": "all matrix products in fp32; TF32 is off.",
    "tf32": "fp32 with TF32 (10 bits of mantissa) for matrix products.",
    "bf16": "autocast to bfloat16: matrix products in bf16; parameters, gradients and optimizer in fp32.",
    "fp8": "products of linear layers in fp8 with one scale for each tensor (torchao); all else as with bf16.",
    "fp8-rowwise": "products of linear layers in fp8 with one scale for each row (torchao); all else as with bf16.",
    "bf16-true": "parameters, gradients, optimizer state and all arithmetic in bfloat16, without autocast.",
    "fp16-true": "parameters, gradients, optimizer state and all arithmetic in float16, without autocast or scaler.",
    "fp16": "autocast to float16: matrix products in fp16; parameters, gradients and optimizer in fp32.",
}


@dataclass(frozen=True)
class Term:
    """The definition of a term in the tables."""

    word: str
    meaning: str


def used_terms(meanings: Mapping[str, str], words: Iterable[object], term_format: str = "{}") -> Iterator[Term]:
    """Yield the definitions in `meanings` whose words occur in `words`; `term_format` formats the word as a term."""
    used = set(words)
    yield from (Term(term_format.format(word), meaning) for word, meaning in meanings.items() if word in used)


def mode_terms(cells: Iterable[CellRecord]) -> Iterator[Term]:
    """Yield the definitions of the modes of these cells."""
    return used_terms(_MODE_MEANINGS, (cell.axis_value("mode") for cell in cells), "mode {}")


def precision_terms(cells: Iterable[CellRecord]) -> Iterator[Term]:
    """Yield the definitions of the precisions of these cells."""
    return used_terms(_PRECISION_MEANINGS, (cell.axis_value("precision") for cell in cells))
