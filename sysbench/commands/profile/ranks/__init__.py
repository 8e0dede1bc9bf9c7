"""Tables and figures of several ranks of one run."""
