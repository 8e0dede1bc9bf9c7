"""`sysbench report`."""

from sysbench.command import Command

COMMAND = Command(
    name="report",
    package=__name__,
    spec=None,
    help="Write finished runs up: findings, tables, pictures, cautions, environment and method.",
)
