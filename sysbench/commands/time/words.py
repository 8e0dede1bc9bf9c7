"""What a timing run has shown, in sentences: each with its numbers and the cells that it rests on.

One way of computing a training step against another, in sentences: precision, compilation, attention, …
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time.findings import (
    Compared,
    Comparison,
    FirstSteps,
    Flat,
    Frontier,
    Growth,
    Parts,
    Spread,
    comparison,
    first_steps,
    flat,
    frontiers,
    gains_along,
    growth,
    paced_by_launches,
    parts,
    paybacks,
    rated,
    spreads,
    starts_slow,
    together,
)
from sysbench.commands.time.record import TimeCellRecord
from sysbench.commands.time.series import (
    FORWARD_BACKWARD,
    arms,
    believable,
    doubts,
    launch_bound,
    places,
    samples,
    settings,
)
from sysbench.render.findings import (
    MOST_NAMED,
    Namer,
    Said,
    counted,
    left_out,
    listed,
    loosely,
    multiple,
    named,
    namer,
    percentage,
    share_range,
    share_with_interval,
    together_named,
    with_interval,
)
from sysbench.statistics import PowerLaw

COMPARED_AXES: Final = ("device", "precision", "execution", "attention", "optimizer")
"""Choices that are held against each other, the first of the run against each other one."""


def time_comparisons_said(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    """A sentence for each arm that was measured on something that the first one was measured on too."""
    for axis in COMPARED_AXES:
        values = arms(cells, axis)
        phase = "optimizer" if axis == "optimizer" else "step"
        for arm in values[1:]:
            found = comparison(cells, axis, values[0], arm, phase)
            if found is not None and len(found.decided(-1)) == len(found.each):
                # What is slower everywhere is what the other one is faster than.
                found = comparison(cells, axis, arm, values[0], phase)
            if found is not None:
                rests = tuple(cell for each in found.each for cell in (each.pair.base, each.pair.other))
                yield Said(_comparison(found, cells), rests)
                yield from _paid(found, cells)


def _comparison(found: Comparison, cells: Sequence[TimeCellRecord]) -> str:
    name = namer(cells, (found.axis,))
    of = "" if found.phase == "step" else f"{found.phase}: "
    arm, base = (axes.phrase(found.axis, value) for value in (found.arm, found.base))
    if len(found.each) == 1:
        (only,) = found.each
        if only.effect.direction == 0:
            return f"{of}{arm} and {base} cannot be told apart: {with_interval(only.effect.ratio)}."
        return f"{of}{arm} is {with_interval(only.effect.ratio)} as fast as {base}."
    undecided = found.decided(0)
    if len(undecided) == len(found.each):
        values = [each.effect.ratio.value for each in found.each]
        return (
            f"{of}{arm} and {base} cannot be told apart in {counted(len(found.each))}: "
            f"{units.ratio(values[0])} to {units.ratio(values[-1])}."
        )
    if found.common is not None and not undecided:
        return f"{of}{arm} is {multiple(found.common)} as fast as {base} in {counted(len(found.each))}."
    said_of_all = _most_and_least(found, name, arm, base)
    return f"{of}{said_of_all}{_by_phase(found, cells)}{_trends(found)}{_doubts(found)}{_why(found)}."


def _most_and_least(found: Comparison, name: Namer, arm: str, base: str) -> str:
    least, most = found.each[0], found.each[-1]
    return (
        f"{arm} is {units.ratio(most.effect.ratio.value)} as fast as {base} at {name(most.pair.base)} and "
        f"{units.ratio(least.effect.ratio.value)} at {name(least.pair.base)}, {units.ratio(found.mean)} in the "
        f"geometric mean of {len(found.each)} cells"
    )


def _by_phase(found: Comparison, cells: Sequence[TimeCellRecord]) -> str:
    """`; forward 1.50 to 2.51×, backward 1.81 to 2.58×`."""
    parts_ = []
    for phase in ("forward", "backward") if found.phase == "step" else ():
        of_phase = comparison(cells, found.axis, found.base, found.arm, phase)
        if of_phase is not None and "backward" in of_phase.each[0].pair.base.phases:
            low, high = (of_phase.each[end].effect.ratio.value for end in (0, -1))
            parts_.append(f"{phase} {low:.2f} to {units.ratio(high)}")
    return f" ({', '.join(parts_)})" if parts_ else ""


def _trends(found: Comparison) -> str:
    """`; the larger the model and the longer the context, the more`."""
    words = [words for axis, words in _MORE.items() if gains_along(found, axis)]
    return f"; {' and '.join(words)}, the more" if words else ""


_MORE: Final = {"size": "the larger the model", "ctx": "the longer the context"}


def _doubts(found: Comparison) -> str:
    slower, same = found.decided(-1), found.decided(0)
    text = ""
    if slower and found.decided(1):
        text += f"; it is slower at {_at(slower, found)}"
    if same:
        text += f"; the two cannot be told apart at {_at(same, found)}"
    return text


def _at(some: Sequence[Compared], found: Comparison) -> str:
    everything = [each.pair.base for each in found.each]
    return together_named([each.pair.base for each in some], everything, (found.axis,))


def _why(found: Comparison) -> str:
    """Where the arm gains least, what was seen to hold it back; nothing where that holds back what gains most too."""
    if found.axis not in ("precision", "attention"):
        return ""
    cells = [cell for each in found.each for cell in (each.pair.base, each.pair.other)]
    waiting = {cell.key for cell in paced_by_launches(_unique(cells))}
    if found.each[0].pair.other.key not in waiting or found.each[-1].pair.other.key in waiting:
        return ""
    held = [each.pair.other for each in found.each if each.pair.other.key in waiting]
    return f": launching kernels, not arithmetic, sets the pace of {together_named(held, cells, (found.axis,))}"


def _unique(cells: Iterable[TimeCellRecord]) -> list[TimeCellRecord]:
    return list({cell.key: cell for cell in cells}.values())


def _paid(found: Comparison, cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    """After how many steps compiling was worth it."""
    paid = paybacks(found)
    if not paid:
        return
    name = namer(cells, (found.axis,))
    low, high = paid[0], paid[-1]
    if len(paid) == 1:
        taken = units.seconds(low.compile_s)
        text = f"compiling takes {taken}, which faster steps make up for after {low.steps:.0f} of them"
    else:
        ends = sorted(each.compile_s for each in paid)
        text = (
            f"compiling takes {units.seconds(ends[0])} to {units.seconds(ends[-1])}, which faster steps make up for "
            f"after {low.steps:.0f} ({name(low.cell)}) to {high.steps:.0f} of them ({name(high.cell)})"
        )
    yield Said(f"{text}.", tuple(each.cell for each in paid))


STEADY: Final = 0.02
"""A standard deviation of at most this share of the mean is called small, and beyond `RESTLESS` high."""

RESTLESS: Final = 0.1

MOST_SETTINGS: Final = 4
"""As many ways of computing get a sentence each."""

MOST_ROWS: Final = 4
"""As many rows along an axis are said one by one."""

_VARIED: Final = ("forward", "backward", "step")


def said(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    """Every sentence that these cells carry, the most asked for first."""
    everywhere = namer(cells)
    yield from headlines(cells)
    yield from _flats(cells)
    yield from _growths(cells)
    yield from _optimizers(cells)
    yield from _rates(cells)
    yield from _warmups(cells, everywhere)
    yield from _spreads(cells, everywhere)
    yield from _peaks(cells, everywhere)
    yield from _frontiers(cells)
    said_of = "what is said of this run, or of its comparisons"
    yield from left_out(cells, lambda cell: doubts(cell, alone=False), said_of)


def headlines(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    """Those that are worth a line below the tables on a screen, which say the rest by themselves."""
    yield from time_comparisons_said(cells)
    yield from _phases(cells)
    yield from _studies(cells)


# --- settings: what is said of each apart


def _by_setting(
    cells: Sequence[TimeCellRecord], whole: Callable[[Sequence[TimeCellRecord]], bool]
) -> Iterator[tuple[str, Sequence[TimeCellRecord]]]:
    """All cells, if one sentence fits them all or settings are too many for one each; else those of each setting.

    Words for the setting come with its cells, to stand before the sentence.
    """
    groups = settings(cells)
    if not 1 < len(groups) <= MOST_SETTINGS or whole(cells):
        yield "", cells
        return
    differing = axes.varying([group[0].axes for group in groups])
    for group in groups:
        yield f"{', '.join(axes.phrase(axis, group[0].axes[axis]) for axis in differing)}: ", group


def _within(group: Sequence[TimeCellRecord], cells: Sequence[TimeCellRecord]) -> Namer:
    """Names for the cells of a setting: what all of its cells share was said before."""
    return namer(group) if len(group) > 1 else namer(cells)


# --- backward against forward


def _phases(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    def agreed(some: Sequence[TimeCellRecord]) -> bool:
        found = parts(some, ("backward",), ("forward",))
        return found is not None and found.common is not None

    for where, group in _by_setting(cells, agreed):
        found = parts(group, ("backward",), ("forward",))
        if found is not None:
            text = f"{where}{_backward(found, group, _within(group, cells))}"
            yield Said(text, tuple(each.cell for each in found.each))


def _backward(found: Parts, group: Sequence[TimeCellRecord], name: Namer) -> str:
    if len(found.each) == 1:
        return f"backward takes {with_interval(found.each[0].ratio)} as long as forward."
    if found.common is not None:
        return f"backward takes {multiple(found.common)} forward in {counted(len(found.each))}{_and_both(group)}."
    return f"backward takes {_from_to(found, name)} as long as forward{_paced(found, group)}."


def _and_both(group: Sequence[TimeCellRecord]) -> str:
    """Forward and backward together, where the cells agree on that too."""
    both = parts(group, FORWARD_BACKWARD, ("forward",))
    if both is None or both.common is None:
        return ""
    return f"; forward, loss and backward together take {multiple(both.common)} forward"


def _from_to(found: Parts, name: Namer) -> str:
    low, high = found.each[0], found.each[-1]
    return f"{loosely(low.ratio, name(low.cell))} to {loosely(high.ratio, name(high.cell))}"


def _paced(found: Parts, group: Sequence[TimeCellRecord]) -> str:
    """The same for the cells in which work sets the pace, and not the launching of kernels."""
    waiting = {cell.key for cell in paced_by_launches(group)}
    working = together(each for each in found.each if each.cell.key not in waiting)
    if not waiting or working is None or len(working.each) < 2 or len(working.each) == len(found.each):
        return ""
    low, high = working.each[0].ratio.value, working.each[-1].ratio.value
    much = multiple(working.common) if working.common else f"{low:.2f} to {units.ratio(high)}"
    cells = [each.cell for each in working.each]
    return f"; where work, not launching kernels, sets the pace it is {much} ({together_named(cells, group)})"


# --- time that does not follow the work


def _flats(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    seen = [cell for cell in believable(cells) if launch_bound(cell)]
    if seen:
        text = "launch-bound, so that the host sets the pace and not the device"
        yield Said(f"{text}: {together_named(seen, cells)}.", tuple(seen))
    for where, group in _by_setting(cells, lambda _: False):
        found = flat(group, "forward")
        if found:
            shown = [_flat(each, group) for each in found[:MOST_ROWS]]
            more = [f"{len(found) - MOST_ROWS} more rows"] if len(found) > MOST_ROWS else []
            words = listed([*shown, *more])
            rests = tuple(cell for each in found for cell in each.cells)
            yield Said(f"{where}forward takes hardly longer for more work: {words}{_pace_setter(rests)}.", rests)


def _flat(each: Flat, group: Sequence[TimeCellRecord]) -> str:
    """`medium at ctx 128 and 256 (66.6 and 65.9 ms, 2.01× the FLOPs)`."""
    one, other = samples(each.first, each.phase), samples(each.last, each.phase)
    scale = units.time_scale(one.median_s if one else 0.0)
    first, last = (scale.digits(found.median_s if found else 0.0, 1) for found in (one, other))
    name = namer(group, ("ctx",))(each.first)
    contexts = f"ctx {each.first.axes['ctx']} and {each.last.axes['ctx']}"
    return f"{name} at {contexts} ({first} and {last} {scale.symbol}, {units.ratio(each.work)} the FLOPs)"


def _pace_setter(cells: Sequence[TimeCellRecord]) -> str:
    """What sets the pace instead, as far as it was seen or can be supposed."""
    if all(map(launch_bound, cells)):
        return ": launching kernels sets the pace there"
    device = cells[0].device
    supposed = device is not None and device.type != "cpu"
    return f"; arithmetic does not set the pace there{', launching kernels most likely does' * supposed}"


# --- growth


def _growths(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    for axis, symbol, noun in (("ctx", "ctx", "the context"), ("size", "P", "the number of parameters P")):
        for where, group in _by_setting(cells, lambda _: False):
            laws = [each for each in growth(group, axis, "step") if isinstance(each.law, PowerLaw)]
            if laws:
                text = f"{where}{_step(group)} grows with {noun} {_laws(laws, group, axis, symbol)}."
                yield Said(text, tuple(cell for each in laws for cell in each.cells))


def _step(group: Sequence[TimeCellRecord]) -> str:
    return "forward" if group[0].axes["mode"] in ("forward", "inference") else "the step"


def _laws(laws: Sequence[Growth], group: Sequence[TimeCellRecord], axis: str, symbol: str) -> str:
    """`as ctx^1.08 ± 0.03 in small (ctx 128 to 1024), …`; those beyond a few as the range of their exponents."""
    name = namer(group, (axis,))
    known = [(each.law, name(each.cells[0])) for each in laws if isinstance(each.law, PowerLaw)]
    if len(known) > MOST_ROWS:
        known.sort(key=lambda pair: pair[0].exponent)
        (low, first), (high, last) = known[0], known[-1]
        return f"as {_power(low, symbol)} ({first}) to {_power(high, symbol)} ({last}), of {len(known)} rows"
    alone = len(places(group, axis)) == 1
    return ", ".join(
        f"as {_power(law, symbol)}{'' if alone else f' at {where}'}{_over(law, axis)}" for law, where in known
    )


def _power(law: PowerLaw, symbol: str) -> str:
    return f"{symbol}^{law.exponent:.2f} ± {law.half_width:.2f}"


def _over(law: PowerLaw, axis: str) -> str:
    ends = (units.count(size) if axis == "size" else f"{size:.0f}" for size in (law.sizes[0], law.sizes[-1]))
    return f" ({' to '.join(ends)}, {len(law.sizes)} sizes)"


# --- the optimizer


def _optimizers(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    def agreed(some: Sequence[TimeCellRecord]) -> bool:
        found = parts(some, ("optimizer",), ("step",))
        return found is not None and found.common is not None

    for where, group in _by_setting(cells, agreed):
        found = parts(group, ("optimizer",), ("step",))
        if found is not None:
            text = f"{where}the optimizer takes {_shares(found, _within(group, cells))}."
            yield Said(text, tuple(each.cell for each in found.each))


def _shares(found: Parts, name: Namer) -> str:
    if len(found.each) == 1:
        return f"{share_with_interval(found.each[0].ratio)} of the step"
    if found.common is not None:
        return f"{percentage(found.common)} of the step in {counted(len(found.each))}"
    return f"{share_range([(each.ratio.value, each.cell) for each in found.each], name)} of the step"


# --- rates


def _rates(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    for (precision, peak), group in _by_peak(cells).items():
        found = rated(group)
        if not found:
            continue
        name, rates = namer(cells, ("precision",)), found[-1].cell.rates
        source = rates.peak_source if rates else None
        reached = share_range([(each.share, each.cell) for each in found], name)
        text = f"over the whole step, matrix products run at {reached} of the hardware's peak for {precision}"
        origin = f", {units.flop_rate(peak)}{f' ({source})' if source else ''}"
        yield Said(f"{text}{origin}.", tuple(each.cell for each in found))


def _by_peak(cells: Iterable[TimeCellRecord]) -> dict[tuple[str, float], list[TimeCellRecord]]:
    found: dict[tuple[str, float], list[TimeCellRecord]] = {}
    for each in rated(cells):
        found.setdefault((str(each.cell.axes["precision"]), each.peak_flops_per_s), []).append(each.cell)
    return found


# --- warming up


def _warmups(cells: Sequence[TimeCellRecord], name: Namer) -> Iterator[Said]:
    found = first_steps(cells)
    slow = sorted((each for each in found if each.settles_after), key=lambda each: -each.first)
    if slow:
        yield Said(_warmup(slow, len(found), name), tuple(each.cell for each in slow))
    elif found:
        where = f" in {counted(len(found))}" if len(found) > 1 else ""
        text = f"the first step, a warm-up, takes no longer than those that count{where}."
        yield Said(text, tuple(each.cell for each in found))


def _warmup(slow: Sequence[FirstSteps], count: int, name: Namer) -> str:
    worst = slow[0]
    steps = len(found.samples_s) if (found := samples(worst.cell, "step")) else 0
    excess = f"without warming up the mean of {steps} steps would be {units.share(worst.excess_share)} longer"
    after = f"from step {max(each.settles_after for each in slow) + 1} on all are as the later ones"
    if count == 1:
        return f"the first step takes {_times(worst.first)} as long as later ones; {after}; {excess}."
    ends = f"{_times(slow[-1].first)} to " if len(slow) > 1 else ""
    where = f"in {counted(count)}" if len(slow) == count else f"in {len(slow)} of {count} cells"
    most = f"most at {name(worst.cell)}, where {excess}"
    return f"the first step takes {ends}{_times(worst.first)} as long as later ones {where}; {after}; {most}."


def _times(value: float) -> str:
    return f"{value:.0f}×" if value >= 20 else f"{value:.1f}×"


def _studies(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    """What counting from the first step on does to the mean: against the median, which a slow step does not move."""
    if len(arms(cells, "warmup")) < 2:
        return
    name = namer(cells, ("warmup",))
    rows = places([cell for cell in cells if cell.outcome == "ok" and samples(cell, "step")], "warmup")
    for row in rows:
        ordered = sorted(row, key=lambda cell: int(cell.axes["warmup"]))
        if len(ordered) < 2:
            continue
        where = f"{name(ordered[0])}: " if len(rows) > 1 else ""
        if starts_slow(ordered[0]):
            text = listed([_study(cell, first=number == 0) for number, cell in enumerate(ordered)])
        else:
            few = axes.phrase("warmup", ordered[0].axes["warmup"]) if ordered[0].axes["warmup"] else "no warm-up"
            text = f"even with {few} the first step takes no longer than the others, so that the mean does not suffer"
        yield Said(f"{where}{text}.", tuple(ordered))


def _study(cell: TimeCellRecord, *, first: bool) -> str:
    """`without warming up the mean of 10 steps is 116 % above their median (301.9 ± 513.5 ms)`."""
    found = samples(cell, "step")
    few = axes.phrase("warmup", cell.axes["warmup"]) if cell.axes["warmup"] else ""
    if found is None:
        return few
    excess = found.mean_s / found.median_s - 1
    side = "above" if excess >= 0 else "below"
    amount = f"{units.share(abs(excess))} {side}" if abs(excess) >= NOTICEABLE else "no farther than 0.05 % from"
    what = f"the mean of {len(found.samples_s)} steps is " if first else "it is "
    median = " their median" if first else " it"
    when = f"after {few}" if few else "without warming up"
    return f"{when} {what}{amount}{median} ({units.seconds_with_deviation(found.mean_s, found.std_s)})"


NOTICEABLE: Final = 0.0005
"""A mean that is nearer to the median reads as the same."""


# --- spread


def _spreads(cells: Sequence[TimeCellRecord], name: Namer) -> Iterator[Said]:
    by_phase = {phase: found for phase in _VARIED if (found := spreads(cells, phase))}
    if "backward" not in by_phase and len(by_phase) == 2:
        # The step is forward alone.
        del by_phase["step"]
    if not by_phase:
        return
    words = [f"{_the(phase)} {_spread(found, name)}" for phase, found in by_phase.items()]
    worst = max(found[-1].share for found in by_phase.values())
    typical = max(found[len(found) // 2].share for found in by_phase.values())
    verdict = (
        "small" if worst <= STEADY else "mostly small" if typical <= STEADY else "high" if typical > RESTLESS else ""
    )
    text = f"standard deviation, as a share of the mean: {', '.join(words)}{f'; {verdict}' if verdict else ''}."
    every = {each.cell.key: each.cell for found in by_phase.values() for each in found}
    yield Said(text, tuple(every.values()))


_TYPICAL: Final = 4
"""Of fewer cells none is typical."""


def _the(phase: str) -> str:
    return "the step" if phase == "step" else phase


def _spread(found: Sequence[Spread], name: Namer) -> str:
    high = found[-1]
    if len(found) == 1:
        return units.share(high.share)
    low, typical = units.share(found[0].share), units.share(found[len(found) // 2].share)
    if typical == units.share(high.share) and (low == typical or len(found) >= _TYPICAL):
        return typical
    if len(found) < _TYPICAL:
        return f"{low} to {units.share(high.share)}"
    return f"typically {typical}, at most {units.share(high.share)} ({name(high.cell)})"


# --- memory


def _peaks(cells: Sequence[TimeCellRecord], name: Namer) -> Iterator[Said]:
    known = sorted(
        ((peak, cell) for cell in cells if cell.outcome == "ok" and (peak := cell.memory.allocated_peak_bytes)),
        key=lambda each: each[0],
    )
    if known:
        (low, least), (high, most) = known[0], known[-1]
        ends = f"{units.size(low)} ({name(least)}) to {units.size(high)} ({name(most)})"
        text = ends if len(known) > 1 else units.size(high)
        yield Said(f"peak allocated memory: {text}.", tuple(cell for _, cell in known))


def _frontiers(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    """Rows along the context that end alike, together."""
    alike: dict[tuple[str, str], list[Frontier]] = {}
    for each in frontiers(cells):
        fits = f"ctx {each.fits.axes['ctx']} fits" if each.fits is not None else "no smaller context was measured"
        alike.setdefault((f"ctx {each.beyond.axes['ctx']}", fits), []).append(each)
    for (ends, fits), found in alike.items():
        beyond = [each.beyond for each in found]
        which = named(beyond, namer(cells, ("ctx",)), MOST_NAMED)
        verb = "runs" if len(found) == 1 else "run"
        rests = tuple(cell for each in found for cell in (each.fits, each.beyond) if cell is not None)
        yield Said(f"{which} {verb} out of memory at {ends}; {fits}.", rests)
