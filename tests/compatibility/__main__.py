"""Compares what the command line answers with what was recorded: `python -m tests.compatibility`."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
import time
from pathlib import Path
from urllib.parse import quote

from tests.compatibility import answers
from tests.compatibility.answering import answering
from tests.compatibility.lines import Line, lines
from tests.compatibility.shortening import FRACTION


def main() -> int:
    """0 when all answers are as recorded, or were recorded; 1 when any differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.compatibility", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the answers down instead of comparing them")
    parser.add_argument("--only", metavar="TEXT", default="", help="only command lines, or groups, with this in them")
    parser.add_argument("--every", metavar="N", type=int, default=1, help="only every Nth of these, for a quick look")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="only write the whole answers there, for `diff -r`")
    asked = parser.parse_args()
    started_s = time.monotonic()
    chosen = [line for line in lines() if asked.only in f"[{line.group}] {line.text}"][:: asked.every]
    found = answered(chosen, whole=asked.keep is not None)
    if asked.keep is not None:
        for line, text in found.items():
            path = asked.keep / line.group / f"{quote(line.text, safe=' ~+=,')[:200]}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        return 0
    if asked.record:
        if not asked.only and asked.every == 1:
            answers.record_libraries()
        for group in dict.fromkeys(line.group for line in chosen):
            known = {**answers.recorded(group), **{line.text: text for line, text in found.items()}}
            in_order = [line.text for line in lines() if line.group == group and line.text in known]
            answers.record(group, {text: known[text] for text in in_order})
        print(f"{len(found)} answers recorded in {time.monotonic() - started_s:.0f} s")
        return 0
    different = [difference for line, text in found.items() if (difference := compared(line, text))]
    print("\n".join(different), end="\n" if different else "")
    print(f"{len(found)} answers, {len(different)} differ, {time.monotonic() - started_s:.0f} s")
    return 1 if different else 0


def answered(chosen: list[Line], *, whole: bool = False) -> dict[Line, str]:
    """What these command lines answer now."""
    with answering() as place:
        return {line: place.answer(line, whole=whole) for line in chosen}


TOLERANCE = 2e-8
"""Relative difference up to which two decimal fractions are the same number: processors differ in the last digits."""


def same(then: str, now: str) -> bool:
    """Whether two answers have the same words and whole numbers to the letter, and the same fractions as numbers."""
    if then == now:
        return True
    fractions = zip(FRACTION.findall(then), FRACTION.findall(now), strict=False)
    return FRACTION.split(then) == FRACTION.split(now) and all(
        math.isclose(float(one), float(other), rel_tol=TOLERANCE) for one, other in fractions
    )


def compared(line: Line, now: str) -> str:
    """A unified diff of what was recorded and of what is answered now; empty where nothing differs.

    What another version of matplotlib draws is left out.
    """
    then = answers.recorded(line.group).get(line.text, "")
    if "matplotlib" in answers.other_libraries():
        then, now = (re.sub(r"(?m)^picture \w+$", "picture", text) for text in (then, now))
    if same(then, now):
        return ""
    diff = difflib.unified_diff(then.split("\n"), now.split("\n"), "recorded", "now", n=2, lineterm="")
    return "\n".join([f"$ {line.text}", *diff, ""])


if __name__ == "__main__":
    sys.exit(main())
