"""Write up finished runs: findings, tables, pictures, cautions, environment and method."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, also_called="html page notebook plot", spec=None)
