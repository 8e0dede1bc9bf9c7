"""The parent's side of a run: it starts workers, monitors them from outside, and writes the log."""
