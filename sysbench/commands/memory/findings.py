"""Findings of `sysbench memory`: sentences, each with the cells that support it.

Peaks are exact, so findings have no confidence intervals. Differences below `NOTABLE` are ignored, because simulated
peaks differ from recorded ones by up to 1%.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.memory.record import AllocationGroup, MemoryCellRecord, MemoryRecord
from sysbench.render.sentences.finding_kinds import limit_findings, limits
from sysbench.render.sentences.findings import Finding, exclusions, prefixed, reliable, with_setting
from sysbench.render.sentences.phrases import MAX_ALL_NAMED, join_words, name_cells, namer, range_text

NOTABLE: Final = 0.01
"""Smallest difference between two peaks that is reported, as a share."""

MODE_NAMES: Final = {"train": "a full training step", "train-first": "the first training step"}


def of_run(record: MemoryRecord) -> Iterator[Finding]:
    return findings(record.cells)


def findings(cells: Sequence[MemoryCellRecord]) -> Iterator[Finding]:
    """Yield all findings, most important first. No finding covers both measured and simulated cells."""
    return _by_source(cells, _comparisons, _largest_allocations, _context_limits, _residual_stream)


def headlines(cells: Sequence[MemoryCellRecord]) -> Iterator[Finding]:
    """Yield the findings to show below the tables. The tables already show the other findings."""
    return _by_source(cells, _comparisons)


def _by_source(
    cells: Sequence[MemoryCellRecord], *kinds: Callable[[Sequence[MemoryCellRecord]], Iterator[Finding]]
) -> Iterator[Finding]:
    """Yield the findings of all `kinds` for the measured cells, then for the cells of each simulated GPU."""
    groups = axes.group_ignoring(cells, "model", *(axis for axis in axes.AXES if axis != "simulate"))
    for group in groups:
        gpu = group[0].cell.simulate
        prefix = (f"simulated for {gpu}" if gpu else "measured") if len(groups) > 1 else ""
        for kind in kinds:
            for finding in with_setting(kind(reliable(group, "memory")), group):
                yield replace(prefixed(finding, prefix), about="memory", states_origin=bool(prefix))
        yield from exclusions(group, "memory")


def cells_with_peak(cells: Iterable[MemoryCellRecord]) -> list[MemoryCellRecord]:
    """Return the cells that finished within the device's memory, except those of searches, whose results are for the
    value found.
    """
    return [cell for cell in cells if cell.found is None and cell.peak_bytes]


def _comparisons(cells: Sequence[MemoryCellRecord]) -> Iterator[Finding]:
    for mode, name in MODE_NAMES.items():
        yield from _comparison(cells, "mode", "forward", mode, (name, "forward, which keeps its graph"))
    modes = list(dict.fromkeys(cell.cell.mode for cell in cells))
    for axis in axes.CHOICES:
        base, *others = axes.values_along(cells, axis)
        for other in others:
            for protocol in modes:
                of_mode = [cell for cell in cells if cell.cell.mode == protocol]
                where = f"in {MODE_NAMES.get(protocol, protocol)}, " if len(modes) > 1 else ""
                names = (f"{where}{axes.phrase(axis, other)}", axes.phrase(axis, base))
                yield from _comparison(of_mode, axis, base, other, names)


def _comparison(
    cells: Sequence[MemoryCellRecord], axis: str, base: object, other: object, names: tuple[str, str]
) -> Iterator[Finding]:
    """Yield how much memory the cells with `other` need, compared with those that differ from them only in `axis`."""
    pairs = list(axes.pairs(cells_with_peak(cells), axis, base, other))
    if not pairs:
        return
    ratios = [(second.peak_bytes / first.peak_bytes, first) for first, second in pairs]
    name = namer([first for first, _ in pairs], ("mode",))
    is_notable = any(abs(ratio - 1) > NOTABLE for ratio, _ in ratios)
    much = f"{range_text(ratios, name, units.ratio)} as much memory as" if is_notable else "as much memory as"
    if is_notable and len(pairs) == 1:
        ((first, second),), ((ratio, _),) = pairs, ratios
        saved_bytes = first.peak_bytes - second.peak_bytes
        more = f"{units.size(abs(saved_bytes))} {'less' if saved_bytes > 0 else 'more'}"
        much = f"{more} memory ({units.ratio(ratio)}) than"
    yield Finding(f"{names[0]} needs {much} {names[1]}.", tuple(cell for pair in pairs for cell in pair))


def _largest_allocations(cells: Sequence[MemoryCellRecord]) -> Iterator[Finding]:
    """Yield what is largest in the cell with the highest peak, of those without an optimizer if there are any."""
    with_groups = [cell for cell in cells_with_peak(cells) if cell.largest]
    without_optimizer = [cell for cell in with_groups if cell.cell.mode not in MODE_NAMES]
    cell = max(without_optimizer or with_groups, key=lambda cell: cell.peak_bytes, default=None)
    # Library workspaces are not part of the model.
    groups = [group for group in cell.largest if group.category != "workspace"] if cell else []
    if cell is not None and groups:
        largest = max(groups, key=lambda group: (group.size_bytes, group.total_bytes))
        text = f"{namer(cells)(cell)}: the largest allocation at the peak: {group_description(largest)}."
        yield Finding(text, (cell,), named=frozenset(axes.varying(cells)))


def group_description(group: AllocationGroup) -> str:
    """Return `32 × 128.0 MiB of activations from attention.py:56`."""
    frame = group.stack[0] if group.stack else None
    line = f" from {PurePath(frame.filename.replace(chr(92), '/')).name}:{frame.line}" if frame and frame.line else ""
    many = f"{group.count} × " if group.count > 1 else ""
    return f"{many}{units.size(group.size_bytes)} of {group.category}{line}"


def _context_limits(cells: Sequence[MemoryCellRecord]) -> Iterator[Finding]:
    without_search = [cell for cell in cells if cell.found is None]
    found = limits(without_search, "ctx", lambda cell: cell.peak_bytes > 0, lambda cell: cell.does_not_fit)
    name = namer(cells, ("ctx",))
    named = frozenset(axes.varying(cells)) - {"ctx"}
    for finding in limit_findings(found, lambda some: name_cells(some, name, MAX_ALL_NAMED)):
        yield replace(finding, named=named)


def _residual_stream(cells: Sequence[MemoryCellRecord]) -> Iterator[Finding]:
    by_size: dict[tuple[str, int], dict[int, MemoryCellRecord]] = {}
    for cell in cells:
        if cell.found is None and cell.residual_bytes is not None:
            by_size.setdefault((cell.cell.size, cell.cell.batch), {}).setdefault(cell.cell.ctx, cell)
    for (size, batch), row in by_size.items():
        amounts = join_words([f"{units.size(cell.residual_bytes)} at ctx {ctx}" for ctx, cell in row.items()])
        text = f"the residual stream of {size} takes {amounts}: batch {batch} × ctx × d_model × 4 bytes."
        yield Finding(text, tuple(row.values()), named=frozenset({"size", "batch", "ctx"}))
