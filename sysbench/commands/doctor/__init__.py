"""Show what this machine has, what works on it or why not, and how much overhead sysbench has."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, spec=None)
