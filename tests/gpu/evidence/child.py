"""One part, in a process of its own: `python -m tests.gpu.evidence.child PART DIRECTORY SECONDS [--rehearse]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.gpu.evidence.parts import PARTS
from tests.gpu.evidence.work import carry_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[part.name for part in PARTS])
    parser.add_argument("directory", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    (part,) = (each for each in PARTS if each.name == arguments.part)
    carry_out(part, arguments.directory, arguments.seconds, rehearsal=arguments.rehearse)


if __name__ == "__main__":
    main()
