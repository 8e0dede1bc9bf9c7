"""Entry point of `python -m sysbench` and of the `sysbench` script."""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

# All other imports follow the installation of signal handlers, because importing takes a while.

WITHOUT_WORKER = frozenset({"-h", "--help", "--plan", "--from", "--on", "--parallel"})
"""Options that make a command run without a worker."""

INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit. Interrupt signals lead to exit code 130, even during imports."""
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # closed by the caller, as with `>&-`: the next file would be taken for it
            setattr(sys, name, open(os.devnull, "r+" if descriptor else "r"))  # noqa: SIM115, PTH123
    code: str | int | None = INTERRUPTED
    interrupted_by: str | None = "a signal"
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)  # until the next import is complete
        from sysbench.engine.interrupts import STOP_SIGNALS, handle_stop_signals

        with handle_stop_signals() as interrupts:
            try:
                _run()
            except SystemExit as end:
                code = end.code
            finally:
                interrupted_by = interrupts.interrupting_signal
                for number in STOP_SIGNALS:  # all results are saved; the interpreter would exit with a traceback
                    signal.signal(number, signal.SIG_IGN)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if interrupted_by is not None:
        code = INTERRUPTED
        with suppress(OSError):  # the terminal may be gone
            print(f"sysbench: interrupted by {interrupted_by}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _run() -> None:
    """Run the command line, with a worker launched in advance if one will probably be needed."""
    # Collections every 700 objects, the default, took a third of the time to show a run of 10,000 cells.
    gc.set_threshold(100_000)
    with _prelaunched_worker(sys.argv[1:]):
        from sysbench.cli import main

        try:
            main()
        finally:
            gc.freeze()  # traversing all imported objects at exit took a tenth of a second


def _prelaunched_worker(words: Sequence[str]) -> AbstractContextManager[None]:
    from sysbench.bootstrap import rank_from_environment

    if not needs_worker(words) or rank_from_environment(os.environ):
        return nullcontext()
    from sysbench.engine.process import Launcher, prelaunched

    return prelaunched(Launcher())


def needs_worker(words: Sequence[str]) -> bool:
    """Whether a command line probably needs a worker, judged before it is parsed."""
    from sysbench.command import runnable

    options = {word.partition("=")[0] for word in words}
    completing = "_SYSBENCH_COMPLETE" in os.environ
    return bool(words) and words[0] in runnable() and not options & WITHOUT_WORKER and not completing


if __name__ == "__main__":
    main()
