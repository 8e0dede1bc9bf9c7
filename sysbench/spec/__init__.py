"""Inputs of a run: base classes of specs and run options, the axis grammar, model sizes, and known hardware.

A spec is frozen. Its fields define the defaults and the help texts of the command-line options.
"""
