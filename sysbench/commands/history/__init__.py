"""List earlier runs, or show one."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, spec=None)
