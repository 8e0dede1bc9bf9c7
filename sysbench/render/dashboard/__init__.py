"""Live display of a run."""
