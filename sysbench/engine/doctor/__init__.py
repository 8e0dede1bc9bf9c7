"""Finds out what this machine is: one question at a time, each of which may fail, hang or crash without harm."""
