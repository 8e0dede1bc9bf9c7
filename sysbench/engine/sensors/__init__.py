"""Readings of the machine, taken by the parent from outside the measured process."""
