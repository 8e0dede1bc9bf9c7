"""Readings of the machine, taken by the parent process from outside the measured process."""
