"""Run an experiment: several of these commands, as one file says them, into one directory."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, spec=None)
