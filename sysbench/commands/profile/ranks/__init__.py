"""Profiles of several ranks of one run: ranks of traces, and tables of their communication."""
