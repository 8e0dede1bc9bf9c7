"""Long answers as short text that still changes with any byte: a digest, and what a reader would look for."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHORT_CHARACTERS = 3000
"""JSON up to this length is kept as it is."""

_PICTURE = re.compile(r"<svg\b.*?</svg>|data:image/[^\"')]+", re.DOTALL)
_UNSEEN = re.compile(r"<(style|script)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def shortened(path: Path) -> str:
    """What a written file holds."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content, path = gzip.decompress(content), path.with_suffix("")
    if path.suffix in (".png", ".pdf", ".pickle"):
        return f"digest {_digest(content)}\n"
    text = content.decode()
    if path.suffix in (".html", ".svg"):
        return _page(text)
    return shortened_json(text) if path.suffix == ".json" else text


def shortened_json(text: str) -> str:
    """JSON as an outline, where it is long; any other text as it is."""
    if len(text) <= SHORT_CHARACTERS or not text.startswith(("{", "[")):
        return text
    return "\n".join([f"digest {_digest(text.encode())}", *_outline("", json.loads(text), 1)]) + "\n"


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
        yield f"{place}: {len(written)} characters, digest {_digest(written.encode())}"


def _page(text: str) -> str:
    """A page or a drawing: digests of its markup and of its pictures, and the text that is seen."""
    if text.lstrip().startswith(("<?xml", "<svg")):
        pictures, markup = [], text
    else:
        pictures, markup = _PICTURE.findall(text), _PICTURE.sub("<picture/>", text)
    seen = _TAG.sub("\n", _UNSEEN.sub("", markup))
    lines = (" ".join(html.unescape(line).split()) for line in seen.splitlines())
    digests = [f"digest {_digest(markup.encode())}", *(f"picture {_digest(each.encode())}" for each in pictures)]
    return "\n".join([*digests, *(line for line in lines if line)]) + "\n"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
