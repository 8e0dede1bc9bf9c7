"""One folder per command, all alike."""
