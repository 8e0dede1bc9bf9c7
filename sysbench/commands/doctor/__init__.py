"""The `sysbench doctor` command."""

from sysbench.command import Command

COMMAND = Command(
    name="doctor",
    package=__name__,
    help="Show what this machine has, what works on it or why not, and what sysbench itself costs.",
)
