"""The `sysbench compare` command."""

from sysbench.command import Command

COMMAND = Command(
    name="compare",
    package=__name__,
    help="Tell whether B is faster than A, slower, the same, or too close to call; --ab measures both.",
)
