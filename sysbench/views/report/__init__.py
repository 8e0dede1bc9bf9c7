"""Documents made of runs: what is in one, and how it is written."""
