"""`sysbench history`."""

from sysbench.command import Command

COMMAND = Command(
    name="history",
    package=__name__,
    spec=None,
    help="List earlier runs, show one, or remove old ones.",
)
