"""What an attention sweep has shown, in sentences: each with its numbers and the cells that it rests on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sysbench import units
from sysbench.commands.attention.findings import (
    Compared,
    Frontier,
    Growth,
    Lead,
    compared,
    frontier,
    growth,
    leads,
    passages,
)
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
from sysbench.commands.attention.series import (
    TIMES,
    Quantity,
    dims,
    implementations,
    samples,
    settings,
    usual_dim,
    value,
)
from sysbench.render.table import Remark
from sysbench.statistics import NoPowerLaw, PowerLaw, Ratio, direction, ratio

NAMES: dict[Quantity, str] = {"forward": "forward", "backward": "backward", "saved": "memory kept for backward"}

_SYMBOLS = {"seq": "N", "dim": "d"}

LARGEST = 2
"""Kinds of tensors that a sentence names."""

_SETTING = ("simulate", "device", "precision", "batch", "heads")


@dataclass(frozen=True)
class Said:
    """A sentence, which ends with a full stop, and what it rests on."""

    text: str
    cells: Sequence[AttentionCellRecord]
    hint: str = ""
    """Where on the command line there is more of it."""


def findings(record: AttentionRecord) -> list[Remark]:
    """Every sentence that the run carries, setting by setting."""
    groups = settings(record.cells)
    return [
        Remark("finding", f"{said.text[:-1]} ({said.hint}).") if said.hint else Remark("finding", said.text)
        for cells in groups
        for said in sentences(cells, groups)
    ]


def sentences(cells: Sequence[AttentionCellRecord], groups: Sequence[Sequence[AttentionCellRecord]]) -> Iterator[Said]:
    """What the cells of one setting show; each sentence names what sets them apart from the other `groups`."""
    place = _setting(cells[0], groups)
    return (replace(said, text=f"{place}{said.text}") for said in _sentences(cells))


def _sentences(cells: Sequence[AttentionCellRecord]) -> Iterator[Said]:
    dim = usual_dim(cells)
    here = [cell for cell in cells if cell.axes["dim"] == dim]
    mark = "simulated, " if any(cell.source == "simulated" for cell in cells) else ""
    where = f"{mark}d {dim}"
    yield from _fastest(here, where)
    yield from _compiled(here, where)
    yield from _grows(cells, here, where)
    yield from _phases(here, where)
    yield from _kept(here, where)
    yield from _ends(cells, mark)
    yield from _accounted(cells, mark)


def _setting(cell: AttentionCellRecord, groups: Sequence[Sequence[AttentionCellRecord]]) -> str:
    """What sets this part of the run apart from the others: `bf16, batch 8: `."""
    firsts = [group[0].axes for group in groups]
    differing = [axis for axis in _SETTING if len({str(axes.get(axis)) for axes in firsts}) > 1]
    words = [
        f"{axis} {cell.axes[axis]}" if axis in ("batch", "heads") else str(cell.axes[axis] or "measured")
        for axis in differing
    ]
    return f"{', '.join(words)}: " if words else ""


# --- who is fastest


def _fastest(cells: Sequence[AttentionCellRecord], where: str) -> Iterator[Said]:
    for quantity in TIMES:
        found = leads(cells, quantity)
        timed = [cell for cell in cells if samples(cell, quantity) is not None]
        if len(found) == 1:
            yield Said(_one_lead(cells, found[0], quantity, where), timed)
        elif found:
            spans = ", ".join(f"{_with_alike(lead)} {_span(lead)}" for lead in found)
            crossing = "; ".join(_crossings(cells, found, quantity))
            yield Said(f"{quantity}: fastest is {spans}{f'; {crossing}' if crossing else ''} ({where}).", timed)


def _one_lead(cells: Sequence[AttentionCellRecord], lead: Lead, quantity: Quantity, where: str) -> str:
    slowest = max(
        (pairs for name in implementations(cells) if name != lead.implementation
         if (pairs := compared(cells, name, lead.implementation, quantity))),
        key=lambda pairs: pairs[-1].ratio.value,
    )  # fmt: skip
    # The longest sequence at which there is a difference to speak of.
    against = next((pair for pair in reversed(slowest) if direction(pair.ratio) != 0), slowest[-1])
    name, n = against.first.axes["implementation"], against.first.axes["seq"]
    much = f", {with_interval(against.ratio)} as fast as {name} at N {n}" if name not in lead.alike else ""
    return f"{quantity}: {_with_alike(lead)} is fastest {_span(lead)}{much} ({where})."


def _with_alike(lead: Lead) -> str:
    return lead.implementation + (f" (or {', '.join(lead.alike)}, not to be told apart)" if lead.alike else "")


def _span(lead: Lead) -> str:
    return f"at N {lead.first}" if lead.first == lead.last else f"from N {lead.first} to {lead.last}"


def _crossings(cells: Sequence[AttentionCellRecord], found: Sequence[Lead], quantity: Quantity) -> Iterator[str]:
    """Where those that take the lead from each other cross."""
    takes = {(late.implementation, early.implementation) for early, late in itertools.pairwise(found)}
    for each in passages(cells):
        if each.quantity == quantity and (each.slower_first, each.other) in takes:
            crossover = each.crossover
            yield (
                f"{each.slower_first} overtakes {each.other} near N {crossover.at:.0f}, "
                f"between {crossover.below:.0f} and {crossover.above:.0f}"
            )


def _compiled(cells: Sequence[AttentionCellRecord], where: str) -> Iterator[Said]:
    """Compiled against eager, phase by phase, at the shortest and the longest sequence that both have."""
    parts = []
    cells_at: list[AttentionCellRecord] = []
    for quantity in TIMES:
        pairs = compared(cells, "naive", "compiled", quantity)
        if pairs:
            ends = pairs if len(pairs) == 1 else [pairs[0], pairs[-1]]
            cells_at += [cell for pair in ends for cell in (pair.first, pair.second)]
            parts.append(f"{quantity} {' and '.join(map(_at, ends))}")
    if parts:
        yield Said(f"compiled against naive: {'; '.join(parts)} ({where}).", cells_at)


def _at(pair: Compared) -> str:
    """`1.83× (1.82–1.84) as fast at N 16384`."""
    n = pair.first.axes["seq"]
    if direction(pair.ratio) == 0:
        return f"not to be told apart at N {n}, {with_interval(pair.ratio)}"
    return f"{with_interval(pair.ratio)} as fast at N {n}"


def with_interval(found: Ratio) -> str:
    """`3.65× (3.61–3.69)`."""
    decimals = units.ratio_decimals([found.value])
    interval = f" ({found.low:.{decimals}f}–{found.high:.{decimals}f})" if found.low is not None else ""
    return f"{units.ratio(found.value)}{interval}"


# --- growth


def _grows(cells: Sequence[AttentionCellRecord], here: Sequence[AttentionCellRecord], where: str) -> Iterator[Said]:
    """How each implementation grows in N, and at the longest sequence its time in d; those alike in one sentence."""
    along_n = growth(here, "seq")
    longest = _longest_of_all_dims(cells)
    along_d = growth([cell for cell in cells if cell.axes["seq"] == longest], "dim") if longest else []
    alike: dict[str, list[tuple[str, list[Growth]]]] = {}
    for name in implementations(cells):
        in_n = [each for each in along_n if each.row.implementation == name and not _too_few(each)]
        if in_n:
            alike.setdefault(f"{_together(in_n)} ({where}).", []).append((name, in_n))
        in_d = [
            each
            for each in along_d
            if each.row.implementation == name and each.quantity in TIMES and isinstance(each.law, PowerLaw)
        ]
        if in_d:
            alike.setdefault(f"{_together(in_d)} ({where.rpartition('d ')[0]}N {longest}).", []).append((name, in_d))
    for said, those in alike.items():
        rests_on = [cell for _, growths in those for cell in _grown(growths)]
        yield Said(f"{', '.join(name for name, _ in those)}: {said}", rests_on)


def _grown(growths: Sequence[Growth]) -> list[AttentionCellRecord]:
    """The cells that the powers were fitted to."""
    return [cell for each in growths for cell in each.row.cells if value(cell, each.quantity) is not None]


def _too_few(each: Growth) -> bool:
    return isinstance(each.law, NoPowerLaw) and each.law.too_few


def _longest_of_all_dims(cells: Sequence[AttentionCellRecord]) -> int | None:
    """The longest sequence that every head dimension has a time for."""
    every = set(dims(cells))
    found: dict[int, set[int]] = {}
    for cell in cells:
        if value(cell, "forward") is not None:
            found.setdefault(int(cell.axes["seq"]), set()).add(int(cell.axes["dim"]))
    return max((n for n, there in found.items() if there == every), default=None)


def _together(growths: Sequence[Growth]) -> str:
    """Quantities that grow over the same sizes share the words for these."""
    grouped: dict[str, list[str]] = {}
    for each in growths:
        power, over = _growth(each)
        grouped.setdefault(over, []).append(f"{NAMES[each.quantity]} {power}")
    said = "; ".join(f"{', '.join(powers)}{over}" for over, powers in grouped.items())
    return said.replace(" as ", " grows as ", 1)


def _growth(each: Growth) -> tuple[str, str]:
    """The power, and over which sizes: `as N^1.97 ± 0.03`, ` from N 1024 to 16384 (4 sizes)`."""
    symbol = _SYMBOLS[each.row.axis]
    if isinstance(each.law, PowerLaw):
        sizes = each.law.sizes
        over = f" from {symbol} {sizes[0]:.0f} to {sizes[-1]:.0f} ({len(sizes)} sizes)"
        return f"as {exponent(each.law, symbol)}", over
    first, *_, last = each.law.slopes
    ends = [first, last] if first != last else [last]
    parts = ", ".join(f"{symbol}^{slope.exponent:.2f} from {slope.first:.0f} to {slope.last:.0f}" for slope in ends)
    return f"as no one power ({parts})", ""


def exponent(law: PowerLaw, symbol: str) -> str:
    """`N^1.97 ± 0.03`."""
    return f"{symbol}^{law.exponent:.2f} ± {law.half_width:.2f}"


# --- one implementation


def _phases(cells: Sequence[AttentionCellRecord], where: str) -> Iterator[Said]:
    """Forward against backward, at the longest sequence that each implementation has."""
    by_length: dict[int, list[tuple[str, AttentionCellRecord]]] = {}
    for name in implementations(cells):
        found = [
            (cell, ratio(backward.samples_s, forward.samples_s))
            for cell in cells
            if cell.axes["implementation"] == name
            and (forward := samples(cell, "forward")) is not None
            and (backward := samples(cell, "backward")) is not None
        ]
        if found:
            cell, much = max(found, key=lambda each: int(each[0].axes["seq"]))
            by_length.setdefault(int(cell.axes["seq"]), []).append((f"{with_interval(much)} in {name}", cell))
    for n, parts in by_length.items():
        much_each = ", ".join(part for part, _ in parts)
        yield Said(
            f"at N {n} backward takes as long as forward times {much_each} ({where}).", [cell for _, cell in parts]
        )


def _kept(cells: Sequence[AttentionCellRecord], where: str) -> Iterator[Said]:
    """What is kept for backward beside inputs and output, against what both kinds of kernel would keep."""
    alike: dict[str, list[AttentionCellRecord]] = {}
    for name in implementations(cells):
        known = [cell for cell in cells if cell.axes["implementation"] == name and cell.saved_bytes is not None]
        if known:
            cell = max(known, key=lambda each: int(each.axes["seq"]))
            alike.setdefault(_against_formulas(cell), []).append(cell)
    for said, found in alike.items():
        names = ", ".join(implementations(found))
        yield Said(f"{names} {'keep' if len(found) > 1 else 'keeps'} {said} ({where}).", found)


def _against_formulas(cell: AttentionCellRecord) -> str:
    saved, squares = cell.saved_bytes or 0, cell.naive_saved_bytes
    two = f"the {units.size(squares)} of two N × N tensors"
    kept = f"{units.size(saved)} for backward at N {cell.axes['seq']} beside inputs and output"
    if saved >= squares / 4:
        return f"{kept}: {saved / squares:.2f} × {two}"
    statistics = f"{saved / cell.fused_saved_bytes:.2f} × one fp32 number a query"
    return f"{kept}: {statistics}, and {saved / squares:.2g} × {two}"


# --- where memory ends


def _ends(cells: Sequence[AttentionCellRecord], mark: str) -> Iterator[Said]:
    """The frontier, head dimensions with the same one together."""
    grouped: dict[tuple[str, int | None, int | None, tuple[int, ...]], list[Frontier]] = {}
    for each in frontier(cells):
        if each.beyond is not None:
            place = (each.row.implementation, _seq(each.fits), _seq(each.beyond), each.untried)
            grouped.setdefault(place, []).append(each)
    for (name, fits, beyond, untried), rows in grouped.items():
        which = ", ".join(str(row.row.shared["dim"]) for row in rows)
        there = f"the largest N that fits at d {which} is {fits}" if fits else f"no N of this sweep fits at d {which}"
        if untried:
            lengths = f"N {', '.join(map(str, untried))}"
            there = f"{f'N {fits} fits at d {which}; ' if fits else f'at d {which} '}{lengths} not tried"
        ending = "does not fit" if untried else "does not"
        ends = [cell for row in rows for cell in (row.fits, row.beyond) if cell is not None]
        yield Said(f"{mark}{name}: {there}; {beyond} {ending}{_needs(row.beyond for row in rows)}.", ends)


def _seq(cell: AttentionCellRecord | None) -> int | None:
    return int(cell.axes["seq"]) if cell is not None else None


def _needs(cells: Iterable[AttentionCellRecord | None]) -> str:
    """What the first of these would need, as far as it was accounted for."""
    for cell in cells:
        if cell is not None and cell.needed_bytes is not None:
            needed = units.size(cell.needed_bytes)
            of = f", and there are {units.size(cell.available_bytes)}" if cell.available_bytes is not None else ""
            return f": it needs {needed}{of}"
    return ""


def _accounted(cells: Sequence[AttentionCellRecord], mark: str) -> Iterator[Said]:
    """The tensors of the smallest cell that does not fit, those alike together."""
    cell = smallest_beyond(cells)
    if cell is None or not cell.tensors:
        return
    alike: dict[tuple[str, int], int] = {}
    for each in sorted(cell.tensors, key=lambda each: -each.size_bytes):
        shape = " × ".join(str(length) for length in each.shape if length != 1)
        kind = (f"tensor of {shape} {each.dtype}" if shape else each.name), each.size_bytes
        alike[kind] = alike.get(kind, 0) + 1
    parts = [_of_these(kind, size, count) for (kind, size), count in list(alike.items())[:LARGEST]]
    smaller = sum(list(alike.values())[LARGEST:])
    parts += [f"{smaller} smaller"] if smaller else []
    total_bytes = sum(each.size_bytes for each in cell.tensors)
    total = units.size(total_bytes)
    if cell.needed_bytes is not None and cell.needed_bytes > total_bytes:
        total += f", for which the allocator would reserve {units.size(cell.needed_bytes)}"
    have = f", there are {units.size(cell.available_bytes)}" if cell.available_bytes is not None else ""
    named = f"{cell.axes['implementation']}, d {cell.axes['dim']}, N {cell.axes['seq']}"
    yield Said(
        f"{mark}the smallest that does not fit ({named}) needs {'; '.join(parts)}; together {total}{have}.",
        [cell],
        hint="--tables accounting has them by name",
    )


def _of_these(kind: str, size_bytes: int, count: int) -> str:
    """`3 tensors of 8 × 65536 × 65536 float32, 128.0 GiB each`, or `a tensor of 8 × 64 float32, 2.00 KiB`."""
    if count == 1:
        return f"{'a ' if kind.startswith('tensor') else ''}{kind}, {units.size(size_bytes)}"
    many = kind.replace("tensor of", "tensors of", 1) if kind.startswith("tensor") else f"× {kind}"
    return f"{count} {many}, {units.size(size_bytes)} each"


def smallest_beyond(cells: Sequence[AttentionCellRecord]) -> AttentionCellRecord | None:
    """The cell with the fewest bytes of those that do not fit and were accounted for."""
    over = [row.beyond for row in frontier(cells) if row.beyond is not None and row.beyond.tensors]
    return min(over, key=lambda cell: sum(each.size_bytes for each in cell.tensors), default=None)
