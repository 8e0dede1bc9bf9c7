"""The log of a run: its events, the journal that stores them, and the records and earlier runs read from a journal."""
