"""Logs of runs: events, the journal that stores them, records, and access to earlier runs."""
