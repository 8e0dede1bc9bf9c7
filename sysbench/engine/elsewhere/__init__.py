"""Cells that run in parallel, outside the one worker of a run."""
