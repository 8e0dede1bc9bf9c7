"""See what this machine is, what will work on it and why not, and what sysbench itself costs."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, spec=None)
