"""The command line: the only door in, and the only place that exits."""

from sysbench.cli.app import main

__all__ = ["main"]
