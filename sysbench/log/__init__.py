"""The log of a run: events, the journal that stores them, and records and earlier runs read from it."""
