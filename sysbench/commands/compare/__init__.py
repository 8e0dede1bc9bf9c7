"""`sysbench compare`."""

from sysbench.command import Command

COMMAND = Command(
    name="compare",
    package=__name__,
    spec=None,
    help="See whether B is faster than A, slower, the same, or whether that cannot be told; --ab measures both.",
)
