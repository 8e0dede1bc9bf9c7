"""What is worth committing afterwards, made ready: a GPU's file with its ceilings, tables in Markdown, one archive.

Everything stays in the directory of the run.
"""

from __future__ import annotations

import gzip
import re
import shutil
import tarfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sysbench import package
from sysbench.spec import hardware
from tests.gpu.evidence import book as books
from tests.gpu.evidence.book import Book
from tests.gpu.evidence.parts import fixtures
from tests.gpu.evidence.screen import heading, text
from tests.gpu.evidence.work import write_whole

LARGEST_BYTES = 14_000_000
"""Of the archive: what is carried away from a machine often may not be larger than 16 MiB."""

LARGEST_TABLE = 120
"""Rows of a table that people read."""

_MEASURED = re.compile(r"^\[measured\.[a-z0-9]+\]\n(?:(?!\[).*\n?)*", re.MULTILINE)


def keep(book: Book) -> None:
    """Make everything that can be made of what was found so far."""
    write_whole(book.directory / "tables.md", markdown(book))
    write_whole(book.directory / "summary.txt", text(book))
    ceilings = book.parts.get("ceilings", {}).get("numbers", {})
    if ceilings.get("products") and not book.rehearsal and book.machine.get("gpu"):
        slug, content = hardware_file(book.machine, ceilings["products"], ceilings.get("copy"))
        write_whole(book.directory / "hardware" / f"{slug}.toml", content)
    # What other parts are still writing is not to be touched.
    for name in book.parts:
        pack_records(book.directory / "records" / name)
    archive(book.directory, list(book.parts))


# --- the file of the GPU


def hardware_file(
    machine: dict[str, Any], products: Sequence[dict[str, Any]], copy: dict[str, Any] | None
) -> tuple[str, str]:
    """The slug of the GPU and its file for `profiles/hardware`, with the ceilings that were measured now.

    What the file of a known GPU says of its data sheet stays as it is. Of an unknown one only what CUDA reports is
    known: its rates are to be put in by hand, with their source.
    """
    gpu = machine["gpu"]
    card = hardware.find(gpu["name"], gpu["memory_bytes"])
    if card is not None:
        slug = card.slug
        before = (package.profiles("hardware") / f"{slug}.toml").read_text(encoding="utf-8")
    else:
        slug = re.sub(r"[^a-z0-9]+", "-", gpu["name"].lower().removeprefix("nvidia ")).strip("-")
        before = _unknown(gpu)
    content = f"{_MEASURED.sub('', before).rstrip()}\n\n{_measured(machine, products, copy)}"
    hardware.Hardware(slug=slug, **tomllib.loads(content))  # what cannot be read back is not worth writing
    return slug, content


def _unknown(gpu: dict[str, Any]) -> str:
    return (
        f"title = {_quoted(gpu['name'])}\nnames = [{_quoted(gpu['name'])}]\n"
        f'compute_capability = "{gpu["compute_capability"]}"\nmemory_bytes = {gpu["memory_bytes"]}\n'
    )


def _measured(machine: dict[str, Any], products: Sequence[dict[str, Any]], copy: dict[str, Any] | None) -> str:
    versions = f"torch {machine['torch']}, CUDA {machine['cuda']}, driver {machine['driver']}, {machine['date']}"
    lines = []
    for precision in dict.fromkeys(each["precision"] for each in products):
        best = max((each for each in products if each["precision"] == precision), key=lambda e: e["best_flops_per_s"])
        source = (
            f"fastest of {best['calls']} products (n, n) × (n, n) of normal numbers, n = {best['size']}; "
            f"{best['sustained_flops_per_s'] / 1e12:.1f} TFLOP/s sustained; {versions}"
        )
        lines.append(
            f"[measured.{precision}]\nmatmul_flops_per_s = {best['best_flops_per_s'] / 1e12:.1f}e12\n"
            f"source = {_quoted(source)}\n"
        )
    if copy:
        lines.append(
            f"# A copy within the GPU reads and writes {copy['best_bytes_per_s'] / 1e12:.3f} TB/s together, "
            f"{copy['sustained_bytes_per_s'] / 1e12:.3f} sustained\n# ({versions}).\n"
        )
    return "\n".join(lines)


def _quoted(content: str) -> str:
    return '"' + content.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- tables


def markdown(book: Book) -> str:
    """Every table, under the GPU, its versions and the date."""
    promises = [
        [promise["part"], promise["name"], promise["promised"], promise["shown"], promise["verdict"]]
        for promise in book.promises
    ]
    parts = [f"# {heading(book.machine, rehearsal=book.rehearsal)}", _markdown_table(
        ("part", "promise", "promised", "seen", "verdict"), promises)]  # fmt: skip
    for table in books.tables(book.parts.values()):
        parts += [f"## {table['title']}", _markdown_table(table["columns"], table["rows"][:LARGEST_TABLE])]
    return "\n\n".join(parts) + "\n"


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_markdown_row(columns), _markdown_row(["---"] * len(columns))]
    return "\n".join([*lines, *map(_markdown_row, rows)])


def _markdown_row(cells: Sequence[str]) -> str:
    plain = (str(cell).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(plain)} |"


# --- files


def pack_records(directory: Path) -> None:
    """Compress the records, logs and reports that a part's commands have left in its directory."""
    for path in sorted(directory.rglob("*")):
        if path.suffix not in (".json", ".jsonl", ".xml") or not path.is_file():
            continue
        with path.open("rb") as source, gzip.open(f"{path}.gz", "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)
        path.unlink()


def archive(directory: Path, parts: Iterable[str]) -> None:
    """One file with everything that is small, as long as there is room: what is worth most comes first."""
    first = [directory / name for name in (books.FILE, "summary.txt", "tables.md")]
    results = sorted((directory / "parts").glob("*.json"))
    others = [*results, *sorted((directory / "hardware").glob("*")), *fixtures.kept(directory)]
    found = [path for name in parts for path in (directory / "records" / name).rglob("*") if path.is_file()]
    records = sorted(found, key=_bytes)
    target = directory / "evidence.tar.gz"
    beside = target.with_name(".evidence.tar.gz")
    left_bytes = LARGEST_BYTES
    with tarfile.open(beside, "w:gz", compresslevel=6) as packed:
        for path in [*first, *others, *records]:
            # Most is compressed already: what a file has now is what it will take, and no less is counted.
            if path.is_file() and _bytes(path) <= left_bytes:
                left_bytes -= _bytes(path)
                packed.add(path, arcname=f"evidence/{path.relative_to(directory)}")
    beside.replace(target)


def _bytes(path: Path) -> int:
    return path.stat().st_size
