"""Pictures that a run has drawn itself, of what its record does not keep: every allocation over time, say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysbench.views.picture_file import DOTS_PER_INCH
from sysbench.views.report.document import Picture
from sysbench.views.report.reported import ReportedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIX = ".png"

_SHOWN = {"memory": "Memory over time by category"}


def kept(run: ReportedRun[Any]) -> Iterator[Picture]:
    """Every picture that lies beside the run's record and can be read; pixel for pixel as it is."""
    for path in run.pictures:
        if path.suffix == SUFFIX and _whole(path):
            named = path.stem.removeprefix(f"{run.name}-").replace("-", " ")
            caption = f"{_SHOWN.get(run.record.kind, 'As the run drew it')}: {named}."
            yield Picture(named, caption, partial(_draw, path), run.origin)


def _whole(path: Path) -> bool:
    """Whether a file holds all of a picture: a run may have been killed while it was writing."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
        return False
    return True


def _draw(path: Path) -> Figure:
    """A figure of nothing but the picture, in its own size."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    pixels = imread(path)
    height, width = pixels.shape[:2]
    figure = Figure(figsize=(width / DOTS_PER_INCH, height / DOTS_PER_INCH), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.imshow(pixels, interpolation="none", aspect="auto", cmap="gray")
    return figure
