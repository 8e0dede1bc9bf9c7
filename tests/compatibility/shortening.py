"""Long answers as short text that still changes with any byte: digests, and what a reader would look for."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST_CHARACTERS = 10_000
"""Text up to this length is kept as it is."""

SHOWN_LINES = 60
DIGESTED_LINES = 20
"""Of longer text so many lines are kept, and digests of so many lines each."""

LONGEST_JSON_CHARACTERS = 3_000

FRACTION = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?(?!\w)")
"""A decimal fraction."""

_PICTURE = re.compile(r"<svg\b.*?</svg>|<style\b.*?</style>|data:image/[^\"')]+", re.DOTALL)
_SCRIPT = re.compile(r"<script\b.*?</script>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def file_content(path: Path) -> str:
    """What a written file holds, as text; of a picture its digest."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content, path = gzip.decompress(content), path.with_suffix("")
    if path.suffix in (".png", ".pdf", ".svg", ".pickle"):
        return f"picture {_digest(content)}\n"
    return content.decode()


def shortened(text: str) -> str:
    """A page by its pictures and its words; long JSON as an outline; other long text by its beginning and digests."""
    if text.startswith("<!doctype html>"):
        text = _page(text)
    elif text.startswith(("{", "[{", "[\n")) and len(text) > LONGEST_JSON_CHARACTERS:
        text = "\n".join([f"digest {_text_digest(text)}", *_outline("", json.loads(text), 1)]) + "\n"
    if len(text) <= LONGEST_CHARACTERS:
        return text
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:SHOWN_LINES], *_digests(lines)])


def _digests(lines: list[str]) -> Iterator[str]:
    for start in range(SHOWN_LINES, len(lines), DIGESTED_LINES):
        block = lines[start : start + DIGESTED_LINES]
        digest = _text_digest("".join(block))
        yield f"lines {start + 1} to {start + len(block)}, digest {digest}: {block[0].strip()[:60]}\n"


def _outline(place: str, value: Any, depth: int) -> Iterator[str]:
    """What is short in full; of what is long its parts, and of long parts far down the digest alone."""
    written = json.dumps(value, ensure_ascii=False)
    if len(written) <= 100:
        yield f"{place}: {written}"
    elif isinstance(value, dict | list) and depth < 4:
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from _outline(f"{place}.{name}", part, depth + 1)
    else:
        yield f"{place}: {len(written)} characters, digest {_text_digest(written)}"


def _page(text: str) -> str:
    """Digests of the markup and of each picture, and the text between the tags."""
    markup = _PICTURE.sub("<picture/>", text)
    seen = _TAG.sub("\n", _SCRIPT.sub("", markup))
    lines = (" ".join(html.unescape(line).split()) for line in seen.splitlines())
    pictures = (f"picture {_digest(picture.encode())}" for picture in _PICTURE.findall(text))
    return "\n".join([f"digest {_text_digest(markup)}", *pictures, *(line for line in lines if line)]) + "\n"


def _text_digest(text: str) -> str:
    """A digest of the text with six digits of each fraction, as processors differ in the last of sixteen."""
    return _digest(FRACTION.sub(lambda found: f"{float(found[0]):.6g}", text).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
