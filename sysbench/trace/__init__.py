"""Profiler recordings, packed into columns, and the analysis of where the time goes."""
