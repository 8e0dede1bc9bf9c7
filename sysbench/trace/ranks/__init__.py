"""Traces of several ranks together: communication that nothing hides, waiting apart from transfer, late ranks."""
