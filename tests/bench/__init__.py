"""Benchmarks of sysbench itself: ratios within one run, printed with what is promised, never asserted.

Each is a script: `python -m tests.bench.fidelity`, `.overhead`, `.self_cost`, `.scale`.
"""
