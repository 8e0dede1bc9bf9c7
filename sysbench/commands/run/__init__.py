"""`sysbench run`."""

from sysbench.command import Command

COMMAND = Command(
    name="run",
    package=__name__,
    spec=None,
    help="Run an experiment: several of these commands, as one file says them, into one directory.",
)
