"""Inputs of a run: model sizes, the axis grammar, and one frozen spec per command.

All defaults and help texts of the command line are defined only here.
"""
