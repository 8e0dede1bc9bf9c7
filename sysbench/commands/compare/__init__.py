"""Tell whether B is faster than A, slower, the same, or too close to call; --ab measures both."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, also_called="diff cmp versus ab", spec=None)
