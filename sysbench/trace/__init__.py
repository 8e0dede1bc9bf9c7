"""Profiler recordings, packed into columns, and the analysis of their time."""
