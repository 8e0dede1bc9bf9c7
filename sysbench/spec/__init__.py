"""Inputs of a run: base classes of specs and run options, the axis grammar, model sizes, and known hardware."""
