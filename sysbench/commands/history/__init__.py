"""List earlier runs, or show one."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, also_called="runs list ls show results log logs", spec=None)
