"""Names of the files that a run writes next to its record; if there are several cells, each name includes a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sysbench.spec.axis import declared_fields
from sysbench.spec.cell import RunCell


def labels_of(cells: Sequence[RunCell]) -> dict[str, str]:
    """Map each cell's key to a label that is valid in file names: `ctx128-train`."""
    axes = [name for name, axis in declared_fields().items() if axis.role != "setting"]
    differing = [axis for axis in axes if len({str(cell.axis_value(axis)) for cell in cells}) > 1]
    return {
        cell.key: "-".join(
            _axis_label(axis, value) for axis in differing if (value := cell.axis_value(axis)) is not None
        )
        for cell in cells
    }


def paths_of(path: Path | None, labels: Mapping[str, str]) -> dict[str, Path]:
    """Map each cell's key to `path`, with the cell's label, if not empty, added to the file name."""
    if path is None:
        return {}
    absolute = path.absolute()
    return {key: _with_label(absolute, label) if label else absolute for key, label in labels.items()}


def path_of_rank(path: Path, rank: int) -> Path:
    """Return the path for one rank: `path` itself for rank 0, otherwise `path` with the rank added to the name."""
    return _with_label(path, f"rank{rank}") if rank else path


def paths_of_ranks(path: Path, ranks: int) -> list[Path]:
    """Return the paths for ranks 0 to `ranks` - 1, in order."""
    return [path_of_rank(path, rank) for rank in range(ranks)]


def _with_label(path: Path, label: str) -> Path:
    endings = path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]
    ending = "".join(endings)
    return path.with_name(f"{path.name.removesuffix(ending)}-{label}{ending}")


def _axis_label(axis: str, value: object) -> str:
    needs_name = isinstance(value, int) or value in ("on", "off")
    text = f"{axis}{value}" if needs_name else str(value)
    return "".join(character if character.isalnum() or character in ".-=" else "_" for character in text)
