"""Parallel execution of cells, in other processes or on other machines."""
