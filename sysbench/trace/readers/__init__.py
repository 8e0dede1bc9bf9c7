"""Readers of traces: Kineto's JSON and Nsight Systems' SQLite."""
