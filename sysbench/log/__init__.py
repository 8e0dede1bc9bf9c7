"""What happened: events, the journal that keeps them, and the records and earlier runs that are read from it."""
