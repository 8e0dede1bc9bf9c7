"""`sysbench report`."""

from sysbench.command import Command

COMMAND = Command(
    name="report",
    package=__name__,
    help="Write finished runs up: findings, tables, pictures, cautions, environment and method.",
)
