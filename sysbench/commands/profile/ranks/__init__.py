"""Profiles of several ranks of one run: which trace is which rank, and tables of their communication."""
