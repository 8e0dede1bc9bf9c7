"""Show what this machine has, what works on it and what does not."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, spec=None)
