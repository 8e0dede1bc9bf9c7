"""List earlier runs, show one, or remove old ones."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, spec=None)
