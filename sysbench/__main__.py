"""`python -m sysbench` and the `sysbench` script."""

import gc
import os
import sys
from collections.abc import Sequence

from sysbench.command import kinds

WITHOUT_WORKER = frozenset({"-h", "--help", "--plan", "--from", "--resume"})
"""Options with which they need none; a log that is continued may have everything already."""


def main() -> None:
    """Launch a worker if one will be needed, before the command line is read, which takes a while; then run it.

    A command line that turns out to be wrong has launched it for nothing: it ends with the command.
    """
    if not measures(sys.argv[1:]):
        _run()
        return
    from sysbench.engine.launchers import PlainLauncher
    from sysbench.engine.process import launched_ahead

    with launched_ahead(PlainLauncher()):
        _run()


def measures(words: Sequence[str]) -> bool:
    """Whether a command line looks as if something will be measured."""
    options = {word.partition("=")[0] for word in words}
    return bool(words) and words[0] in kinds() and not options & WITHOUT_WORKER and not _completing()


def _completing() -> bool:
    return "_SYSBENCH_COMPLETE" in os.environ


def _run() -> None:
    from sysbench.cli import main

    try:
        main()
    finally:
        gc.freeze()  # to look through all that was imported before the process ends took a tenth of a second


if __name__ == "__main__":
    main()
