"""Prepares the data of attention figures from a record: curves over N, and heat maps over d and N."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sysbench.commands.attention import figures as attention_figure
from sysbench.commands.attention.figures import Curve, HeatMap, Panel
from sysbench.commands.attention.findings import (
    QUANTITIES,
    Quantity,
    dims,
    exponent,
    frontier,
    growth,
    implementations,
    over_memory,
    predicted,
    samples,
    settings,
    usual_dim,
    value,
)
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
from sysbench.commands.attention.tables import status, subject
from sysbench.errors import UsageError
from sysbench.render import plots
from sysbench.render.findings import listed
from sysbench.render.plots import Drawn, Heading
from sysbench.statistics import PowerLaw
from sysbench.units import Unit

TITLES: dict[Quantity, str] = {"forward": "forward", "backward": "backward", "saved": "kept for backward"}


def refuse_other_formats(*paths: Path | None) -> None:
    """Raise UsageError for the first file name with an unknown format."""
    for path in paths:
        if path is not None and path.suffix.lower().removeprefix(".") not in plots.FORMATS:
            raise UsageError(f"{path} is not a picture's name: it must end in .png, .svg or .pdf")


def figures(record: AttentionRecord) -> Iterator[Drawn]:
    """Curves and heat maps of every setting, without those that add nothing to the others."""
    groups = settings(record.cells)
    for number, cells in enumerate(groups, 1):
        part = record.model_copy(update={"cells": cells})
        maps = _heat_maps(part) if len(dims(cells)) > 1 else None
        for name, found in (("curves", _curves(part)), ("heat-maps", maps)):
            if found is not None:
                yield replace(found, name=f"{name}-{number}" if len(groups) > 1 else name)


def write(record: AttentionRecord, curves: Path | None = None, heat_map: Path | None = None) -> Iterator[Path]:
    """Draw the requested figures, a file for each setting; yields every file that is written.

    With several settings (batches, precisions, devices), file names contain the number of the setting. Settings without
    results have no files. Raises UsageError and OutputError.
    """
    groups = settings(record.cells)
    for number, cells in enumerate(groups, 1):
        part = record.model_copy(update={"cells": cells})
        for path, found in ((curves, _curves), (heat_map, _heat_maps)):
            drawn = path.with_stem(f"{path.stem}-{number}") if path is not None and len(groups) > 1 else path
            drawable = found(part) if drawn is not None else None
            if drawn is not None and drawable is not None:
                plots.write(drawn, drawable.draw)
                yield drawn


def _curves(record: AttentionRecord) -> Drawn | None:
    dim = usual_dim(record.cells)
    cells = [cell for cell in record.cells if cell.cell.dim == dim]
    panels = [found for quantity in QUANTITIES if (found := panel(cells, quantity)) is not None]
    if not panels:
        return None
    caption = _caption(record, f"d {dim}", "medians, bars: 95 % interval")
    shown = listed([each.title for each in panels])
    text = f"Attention over the sequence length: {shown}. {_whole(caption)}."
    return Drawn("curves", text, lambda: attention_figure.draw_curves(panels, caption), tuple(cells))


def _heat_maps(record: AttentionRecord) -> Drawn | None:
    maps = [
        found
        for quantity in QUANTITIES
        if any(value(cell, quantity) is not None for cell in record.cells)
        for name in implementations(record.cells)
        if (found := heat_map(record.cells, name, quantity)) is not None
    ]
    if not maps:
        return None
    caption = _caption(record, "", "medians")
    shown = listed(list(dict.fromkeys(each.quantity for each in maps)))
    text = f"Attention over head dimension and sequence length: {shown}. {_whole(caption)}."
    return Drawn("heat-maps", text, lambda: attention_figure.draw_heat_maps(maps, caption), tuple(record.cells))


def _whole(caption: Heading) -> str:
    simulated = f"{caption.mark.lower()} for {caption.simulated}" if caption.simulated else ""
    return " · ".join(part for part in (caption.title, caption.subtitle, simulated) if part)


def _caption(record: AttentionRecord, where: str, values: str) -> Heading:
    kind, *rest = subject(record)
    # Inputs come first, then hardware and method.
    machine = next((cell.device.name for cell in record.cells if cell.device and cell.source == "measured"), None)
    inputs = [
        word for word in rest if word.split()[0] in ("batch", "causal", "not", "no", "fp32", "tf32", "bf16", "fp16")
    ]
    inputs += [word for word in rest if word.endswith(" heads") and word not in inputs]
    effort = [word for word in rest if "repeats" in word or word.startswith("torch ") or word == "cold caches"]
    modelled = any(cell.source == "predicted" for cell in record.cells)
    timed = [values] if any(cell.forward for cell in record.cells) else []
    timed += ["bars: 90 % interval"] if modelled and "bars" in values else []
    said = [*([machine] if machine else []), *effort, *timed]
    simulated = {cell.gpu.title for cell in record.cells if cell.gpu}
    all_simulated = all(cell.cell.simulated for cell in record.cells)
    return Heading(
        title=" · ".join([kind, *([where] if where else []), *inputs]),
        subtitle=" · ".join(said),
        simulated=", ".join(sorted(simulated)) if all_simulated else "",
        mark="PREDICTED" if modelled else "SIMULATED",
    )


def panel(cells: Sequence[AttentionCellRecord], quantity: Quantity) -> Panel | None:
    """Curves of one quantity for cells of one setting and head dimension; None without values."""
    curves = tuple(curve for name in implementations(cells) if (curve := _curve(cells, name, quantity)) is not None)
    if not any(curve.points for curve in curves):
        return None
    unit: Unit = "bytes" if quantity == "saved" else "s"
    limits = {
        cell.gpu.memory_bytes if cell.gpu else cell.device.memory_bytes if cell.device else None for cell in cells
    } - {None}
    limit = limits.pop() if quantity == "saved" and len(limits) == 1 else None
    return Panel(TITLES[quantity], unit, curves, limit)


def _curve(cells: Sequence[AttentionCellRecord], name: str, quantity: Quantity) -> Curve | None:
    here = sorted((cell for cell in cells if cell.cell.implementation == name), key=lambda cell: cell.cell.seq)
    points = []
    for cell in here:
        if found := value(cell, quantity):
            timed, instead = samples(cell, quantity), predicted(cell, quantity)
            low, high = timed.ci95_s if timed is not None and timed.ci95_s is not None else (None, None)
            if instead is not None:
                low, high = instead.low_s, instead.high_s
            points.append((cell.cell.seq, found, low, high))
    beyond = [each.beyond for each in frontier(here) if each.beyond is not None]
    if not points and not beyond:
        return None
    laws = [each.law for each in growth(here, "seq") if each.quantity == quantity]
    return Curve(
        implementation=name,
        points=tuple(points),
        beyond=beyond[0].cell.seq if beyond else None,
        growth=next((exponent(law, "N") for law in laws if isinstance(law, PowerLaw)), ""),
        modelled=_modelled(here, quantity),
    )


def _modelled(cells: Sequence[AttentionCellRecord], quantity: Quantity) -> str:
    """How a quantity of a GPU that is not present is marked; empty for what was measured."""
    return "" if not any(cell.cell.simulated for cell in cells) else "simulated" if quantity == "saved" else "predicted"


def heat_map(cells: Sequence[AttentionCellRecord], name: str, quantity: Quantity) -> HeatMap | None:
    """Heat map of one quantity of one implementation; None without values."""
    here = [cell for cell in cells if cell.cell.implementation == name]
    if not any(value(cell, quantity) is not None or over_memory(cell) for cell in here):
        return None
    places = {(cell.cell.dim, cell.cell.seq): cell for cell in here}
    known = {place: found for place, cell in places.items() if (found := value(cell, quantity)) is not None}
    return HeatMap(
        implementation=name,
        quantity=TITLES[quantity],
        unit="bytes" if quantity == "saved" else "s",
        dims=tuple(dims(cells)),
        lengths=tuple(sorted({cell.cell.seq for cell in cells})),
        values=known,
        words={place: status(cell).text for place, cell in places.items() if place not in known},
        beyond=frozenset(place for place, cell in places.items() if over_memory(cell)),
        modelled=_modelled(here, quantity),
    )
