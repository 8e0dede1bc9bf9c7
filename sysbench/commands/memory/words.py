"""What memory measurements and simulations have shown, in sentences, with the cells that each rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.memory.findings import (
    FOR_GOOD,
    NOTABLE,
    TRAINING,
    Explained,
    Frontier,
    Pair,
    category_changes,
    contexts,
    copies_bytes,
    frontiers,
    known,
    largest_each,
    largest_together,
    pairs,
    parabola,
    peak,
    rows,
    unmoved,
)
from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.render.findings import Namer, Said, listed, named, namer, share_range, together_named

MOST_ROWS: Final = 4
"""As many rows get a sentence of their own; of more, one sentence has the ends."""

MODES: Final = {"train": "a full training step", "train-first": "the first training step"}

COMPARED_AXES: Final = ("precision", "attention", "execution", "optimizer")


def said(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    """Every sentence that these cells carry, the most asked for first; measured and simulated cells apart."""
    for where, group in _sources(cells):
        for sentence in (*_headlines(group), *_sentences(group)):
            yield Said(f"{where}{sentence.text}", sentence.cells)


def headlines(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    """Those that are worth a line below the tables on a screen, which say the rest by themselves."""
    for where, group in _sources(cells):
        for sentence in _headlines(group):
            yield Said(f"{where}{sentence.text}", sentence.cells)


def _sources(cells: Sequence[MemoryCellRecord]) -> Iterator[tuple[str, list[MemoryCellRecord]]]:
    """Measured cells, and those simulated for each GPU, with words for which they are where there are several."""
    found = rows(cells, "model", *(axis for axis in axes.TITLES if axis != "simulate"))
    for group in found:
        name = group[0].axes["simulate"]
        where = f"simulated for {name}" if name else "measured"
        yield f"{where}: " if len(found) > 1 else "", group


def _headlines(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    yield from _steps(cells)
    for axis in COMPARED_AXES:
        yield from _compared(cells, axis)


def _sentences(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    yield from _growth(cells)
    yield from _phases(cells)
    yield from _for_good(cells)
    yield from _largest(cells)
    yield from _reserved(cells)
    yield from _ends(cells)
    yield from _found(cells)
    yield from _residual(cells)


def _mode(cell: MemoryCellRecord) -> str:
    mode = str(cell.axes["mode"])
    return MODES.get(mode, mode)


# --- a full step against forward


def _steps(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    for mode in TRAINING:
        found = pairs(cells, "mode", "forward", mode)
        if not found:
            continue
        per_row = _by_row(found)
        everything = [cell for pair in found for cell in (pair.base, pair.other)]
        if len(per_row) <= MOST_ROWS:
            for row in per_row:
                name = namer(everything, ("mode", "ctx"))(row[0].base)
                where = f"{name}: " if len(per_row) > 1 else ""
                yield Said(f"{where}{_step(row, mode)}.", _rests(row))
        else:
            ordered = sorted(found, key=lambda pair: pair.share)
            label = namer(everything, ("mode",))
            low, high = ordered[0], ordered[-1]
            text = (
                f"{MODES[mode]} needs {_times(low)} ({label(low.base)}) to {_times(high)} ({label(high.base)}) of what "
                f"forward needs with its graph kept"
            )
            yield Said(f"{text}.", _rests(found))


def _times(pair: Pair) -> str:
    return units.ratio(1 + pair.share)


def _step(row: Sequence[Pair], mode: str) -> str:
    ends = [row[0], row[-1]] if len(row) > 1 else [row[0]]
    words = [
        f"{units.size(peak(pair.other))} at ctx {contexts(pair.base)}, {_times(pair)} the "
        f"{units.size(peak(pair.base))} of forward"
        for pair in ends
    ]
    return f"{MODES[mode]} needs {', and '.join(words)}"


def _by_row(found: Iterable[Pair]) -> list[list[Pair]]:
    """Pairs that differ in their context only, by ascending context."""
    by_base = {pair.base.key: pair for pair in found}
    return [
        sorted((by_base[cell.key] for cell in row), key=lambda pair: contexts(pair.base))
        for row in rows([pair.base for pair in by_base.values()], "ctx")
    ]


def _rests(found: Iterable[Pair]) -> tuple[MemoryCellRecord, ...]:
    return tuple({cell.key: cell for pair in found for cell in (pair.base, pair.other)}.values())


# --- one way of computing against another


def _compared(cells: Sequence[MemoryCellRecord], axis: str) -> Iterator[Said]:
    values = list(dict.fromkeys(cell.axes[axis] for cell in cells))
    for other in values[1:]:
        found = pairs(cells, axis, values[0], other)
        for mode in dict.fromkeys(_mode(pair.base) for pair in found):
            of_mode = [pair for pair in found if _mode(pair.base) == mode]
            arm, base = axes.phrase(axis, other), axes.phrase(axis, values[0])
            where = f"{mode}: " if len({_mode(cell) for cell in cells}) > 1 else ""
            text = f"{where}{arm} instead of {base} {_difference(of_mode, axis)}"
            yield Said(f"{text}.", _rests(of_mode))


def _difference(found: Sequence[Pair], axis: str) -> str:
    name = namer([pair.base for pair in found], ("mode",))
    ordered = sorted(found, key=lambda pair: pair.share)
    saves = [pair for pair in ordered if pair.share < -NOTABLE]
    costs = [pair for pair in ordered if pair.share > NOTABLE]
    if not saves and not costs:
        return f"changes the peak by less than {units.share(NOTABLE)}{_why_same(found, axis)}"
    words = []
    if saves:
        words.append(f"saves {_most(saves[0], name)}")
    if costs:
        words.append(f"costs {_most(costs[-1], name)}")
    same = [pair.base for pair in ordered if abs(pair.share) <= NOTABLE]
    rest = (
        f"; it makes no difference at {together_named(same, [pair.base for pair in found], ('mode',))}" if same else ""
    )
    return f"{' and '.join(words)}{_why(saves, costs, axis)}{rest}"


def _most(pair: Pair, name: Namer) -> str:
    """`at most 1.61 GiB (4.3 %, 2.7b ctx 512)`."""
    return f"up to {units.size(abs(pair.difference))} ({units.share(abs(pair.share))}, {name(pair.base)})"


def _why_same(found: Sequence[Pair], axis: str) -> str:
    phases = {cell.peak_phase for pair in found for cell in (pair.base, pair.other)}
    if axis == "precision" and phases == {"optimizer"}:
        return ": the peak lies in the optimizer, where activations are gone and all is fp32"
    return ""


def _why(saves: Sequence[Pair], costs: Sequence[Pair], axis: str) -> str:
    """What changes at the peaks that change most: copies of weights against activations, else by category."""
    pair = costs[-1] if costs else saves[0]
    copies = copies_bytes(pair.other) if axis == "precision" and costs else None
    if copies is not None and pair.difference > 0:
        against = ", against which smaller activations have to stand" if saves else ""
        return f": autocast keeps 16-bit copies of the weights, {units.size(copies)} by their number{against}"
    changes = category_changes(pair)[:2]
    words = [f"{name} {'+' if change > 0 else '−'}{units.size(abs(change))}" for name, change in changes]
    return f" ({listed(words)} there)" if words else ""


# --- growth


def _growth(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    laws = [law for row in rows(known(cells), "ctx") if (law := parabola(row)) is not None]
    everything = known(cells)
    name = namer(everything, ("ctx",))
    for law in laws[:MOST_ROWS]:
        last = law.cells[-1]
        text = (
            f"{name(last)}: the peak is {units.size(law.fixed)} + {units.size(law.linear)} × ctx + "
            f"{units.size(law.square)} × ctx² (ctx {contexts(law.cells[0])} to {contexts(last)}, "
            f"good to {_within(law.off)}); the square overtakes the rest of the growth at ctx {law.even_at:.0f}"
        )
        yield Said(f"{text}.", law.cells)
    flat = [row for row in rows(everything, "ctx") if unmoved(row)]
    if flat:
        words = [_unmoved(row, name) for row in flat[:MOST_ROWS]]
        yield Said(
            f"the peak does not depend on the context: {'; '.join(words)}.", tuple(c for row in flat for c in row)
        )


def _within(off: float) -> str:
    return "0.1 %" if off <= 0.001 else units.share(off)


def _unmoved(row: Sequence[MemoryCellRecord], name: Namer) -> str:
    ordered = sorted(row, key=contexts)
    phases = {cell.peak_phase for cell in row}
    where = f", in {phases.pop()}" if len(phases) == 1 and None not in phases else ""
    span = f"ctx {contexts(ordered[0])} to {contexts(ordered[-1])}"
    return f"{name(ordered[0])}, {units.size(peak(ordered[0]))} from {span}{where}"


# --- when, and of what


def _phases(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    told = [cell for cell in known(cells) if cell.peak_phase and len(cell.peaks_by_phase) > 1]
    for mode in dict.fromkeys(_mode(cell) for cell in told):
        of_mode = [cell for cell in told if _mode(cell) == mode]
        by_phase: dict[str, list[MemoryCellRecord]] = {}
        for cell in of_mode:
            by_phase.setdefault(str(cell.peak_phase), []).append(cell)
        if len(by_phase) == 1:
            words = f"in {next(iter(by_phase))}{' in every cell' if len(of_mode) > 1 else ''}"
        else:
            words = listed(
                [f"in {phase} at {together_named(found, of_mode, ('mode',))}" for phase, found in by_phase.items()]
            )
        yield Said(f"the peak of {mode} lies {words}.", tuple(of_mode))


def _for_good(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    """What does not depend on the input: weights, gradients and the optimizer's state."""
    told = [cell for cell in known(cells) if cell.axes["mode"] in TRAINING and cell.by_category]
    if not told:
        return
    shares = sorted(
        ((sum(cell.by_category.get(name, 0) for name in FOR_GOOD) / peak(cell), cell) for cell in told),
        key=lambda each: each[0],
    )
    name = namer(told)
    much = share_range(shares, name)
    text = f"weights, gradients and the optimizer's state are {much} of a training step's peak"
    yield Said(f"{text}.", tuple(cell for _, cell in shares))


def _largest(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    """Of the largest forward that fits: what single tensor is largest, and which take most together."""
    forward = [cell for cell in known(cells) if cell.axes["mode"] not in TRAINING and cell.largest]
    chosen = forward or [cell for cell in known(cells) if cell.largest]
    if not chosen:
        return
    cell = max(chosen, key=peak)
    each, together = largest_each(cell), largest_together(cell)
    if each is None or together is None:
        return
    one = "allocation at the peak is" if each.group.count == 1 else "allocations at the peak are"
    text = f"{namer(cells)(cell)}: the largest {one} {_explained(each)}"
    if together.group is not each.group and together.group.total_bytes > each.group.total_bytes:
        text += f"; most together take {_explained(together)}"
    yield Said(f"{text}.", (cell,))


def _explained(found: Explained) -> str:
    """`32 × 128.0 MiB (batch 4 × heads 32 × ctx 512² × 4 bytes), activations from attention.py:56`."""
    group = found.group
    product = f" ({found.product})" if found.product else ""
    frame = group.stack[0] if group.stack else None
    line = f" from {PurePath(frame.filename.replace(chr(92), '/')).name}:{frame.line}" if frame and frame.line else ""
    many = f"{group.count} × " if group.count > 1 else ""
    return f"{many}{units.size(group.size_bytes)}{product}, {group.category}{line}"


def _reserved(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    told = [cell for cell in known(cells) if cell.peak_reserved_bytes]
    more = sorted((((cell.peak_reserved_bytes or 0) / peak(cell) - 1, cell) for cell in told), key=lambda each: each[0])
    if not more:
        return
    name = namer(cells)
    much = share_range(more, name)
    yield Said(f"the allocator reserves {much} more than is allocated at the peak.", tuple(cell for _, cell in more))


# --- where it ends


def _ends(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    alike: dict[str, list[Frontier]] = {}
    for each in frontiers(cells):
        fits = f"ctx {contexts(each.fits)} fits" if each.fits is not None else "nothing shorter fits"
        alike.setdefault(f"{fits}, ctx {contexts(each.beyond)} does not", []).append(each)
    name = namer(cells, ("ctx",))
    for words, found in alike.items():
        short = f" (short by {_short(found[0])})" if len(found) == 1 and _short(found[0]) else ""
        rests = tuple(cell for each in found for cell in (each.fits, each.beyond) if cell is not None)
        of = named([each.beyond for each in found], name, 6)
        yield Said(f"{of}: {words}{short}.", rests)


def _short(each: Frontier) -> str:
    verdict = each.beyond.verdict
    missing = verdict.margin_bytes if verdict is not None else None
    return units.size(-missing) if missing is not None and missing < 0 else ""


def _found(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    searched = [cell for cell in cells if cell.found is not None and cell.found.value]
    if not searched:
        return
    axis = searched[0].found.axis if searched[0].found else "batch"
    name = namer(searched, (axis,))
    words = [
        f"{cell.found.value}{'' if cell.found.beyond else ' or more'}{f' ({name(cell)})' if len(searched) > 1 else ''}"
        for cell in searched
        if cell.found is not None
    ]
    yield Said(f"the largest {axis} that fits is {listed(words)}.", tuple(searched))


# --- what can be computed


def _residual(cells: Sequence[MemoryCellRecord]) -> Iterator[Said]:
    by_size: dict[str, dict[int, MemoryCellRecord]] = {}
    for cell in sorted((cell for cell in cells if cell.found is None), key=contexts):
        by_size.setdefault(str(cell.axes["size"]), {}).setdefault(contexts(cell), cell)
    if len({cell.axes["batch"] for row in by_size.values() for cell in row.values()}) != 1:
        return
    rests = tuple(cell for row in by_size.values() for cell in row.values())
    batch = rests[0].axes["batch"]
    if len(by_size) == 1:
        ((size, row),) = by_size.items()
        amounts, at = (
            listed(words) for words in ([units.size(cell.residual_bytes) for cell in row.values()], list(map(str, row)))
        )
        product = f"batch {batch} × ctx × d_model {rests[0].axes['model']['d_model']} × 4 bytes"
        yield Said(f"one residual stream of {size} is {amounts} at ctx {at}: {product}.", rests)
        return
    words = []
    for size, row in by_size.items():
        shown = list(row.values())
        first, last = shown[0], shown[-1]
        more = f" to {units.size(last.residual_bytes)} at ctx {contexts(last)}" if len(row) > 1 else ""
        words.append(f"{units.size(first.residual_bytes)} at ctx {contexts(first)}{more} in {size}")
    yield Said(f"one residual stream is batch {batch} × ctx × d_model × 4 bytes: {', '.join(words)}.", rests)
