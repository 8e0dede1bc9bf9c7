"""From the record of `sysbench attention` to pictures: curves over N, and heat maps over d and N."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    pass

TITLES: dict[Quantity, str] = {"forward": "forward", "backward": "backward", "saved": "kept for backward"}


def refuse_other_formats(*paths: Path | None) -> None:
    """Raise UsageError for the first of these names that is none of a picture."""
    for path in paths:
        if path is not None and path.suffix.lower().removeprefix(".") not in plots.FORMATS:
            raise UsageError(f"{path} is not a picture's name: it must end in .png, .svg or .pdf")


def figures(record: AttentionRecord) -> Iterator[Drawn]:
    """Curves and heat maps of every setting, as far as there is anything to draw that the others do not show."""
    groups = settings(record.cells)
    for number, cells in enumerate(groups, 1):
        part = record.model_copy(update={"cells": cells})
        maps = _heat_maps(part) if len(dims(cells)) > 1 else None
        for name, found in (("curves", _curves(part)), ("heat-maps", maps)):
            if found is not None:
                yield replace(found, name=f"{name}-{number}" if len(groups) > 1 else name)


def write(record: AttentionRecord, curves: Path | None = None, heat_map: Path | None = None) -> Iterator[Path]:
    """Draw what was asked for, a file for each setting; yields every file that is written.

    With several settings (batches, precisions, devices) their number stands in the file's name. Where nothing was
    measured, there is nothing to draw, and nothing is written. Raises UsageError and OutputError.
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
    # What the inputs are comes first, then on what and how it was measured.
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
    """The curves of one quantity, of cells of one setting and head dimension; None where nothing is known of it."""
    curves = tuple(curve for name in implementations(cells) if (curve := _curve(cells, name, quantity)) is not None)
    if not any(curve.points for curve in curves):
        return None
    unit: Unit = "bytes" if quantity == "saved" else "s"
    limits = {_capacity(cell) for cell in cells} - {None}
    limit = limits.pop() if quantity == "saved" and len(limits) == 1 else None
    return Panel(TITLES[quantity], unit, curves, limit)


def _capacity(cell: AttentionCellRecord) -> int | None:
    if cell.gpu is not None:
        return cell.gpu.memory_bytes
    return cell.device.memory_bytes if cell.device is not None else None


def _curve(cells: Sequence[AttentionCellRecord], name: str, quantity: Quantity) -> Curve | None:
    here = sorted((cell for cell in cells if cell.cell.implementation == name), key=lambda cell: cell.cell.seq)
    points = tuple(point for cell in here if (point := _point(cell, quantity)) is not None)
    beyond = [each.beyond for each in frontier(here) if each.beyond is not None]
    if not points and not beyond:
        return None
    laws = [each.law for each in growth(here, "seq") if each.quantity == quantity]
    return Curve(
        implementation=name,
        points=points,
        beyond=beyond[0].cell.seq if beyond else None,
        growth=next((exponent(law, "N") for law in laws if isinstance(law, PowerLaw)), ""),
        modelled=_modelled(here, quantity),
    )


def _modelled(cells: Sequence[AttentionCellRecord], quantity: Quantity) -> str:
    """How a quantity of a GPU that was not there is called; empty for what was measured."""
    return "" if not any(cell.cell.simulated for cell in cells) else "simulated" if quantity == "saved" else "predicted"


def _point(cell: AttentionCellRecord, quantity: Quantity) -> tuple[int, float, float | None, float | None] | None:
    found = value(cell, quantity)
    if not found:
        return None
    timed, instead = samples(cell, quantity), predicted(cell, quantity)
    low, high = timed.ci95_s if timed is not None and timed.ci95_s is not None else (None, None)
    if instead is not None:
        low, high = instead.low_s, instead.high_s
    return cell.cell.seq, found, low, high


def heat_map(cells: Sequence[AttentionCellRecord], name: str, quantity: Quantity) -> HeatMap | None:
    """One quantity of one implementation; None where nothing came of it at all."""
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
