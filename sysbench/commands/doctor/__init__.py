"""`sysbench doctor`."""

from sysbench.command import Command

COMMAND = Command(
    name="doctor",
    package=__name__,
    spec=None,
    help="See what this machine is, what will work on it and why not, and what sysbench itself costs.",
)
