"""See whether B is faster than A, slower, the same, or whether that cannot be told; --ab measures both."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, spec=None)
