"""Benchmarks of sysbench itself: ratios within one run, printed with what is promised, never asserted.

Each is a script: `python -m tests.bench.overhead`, `.self_cost`, `.scale`.
"""
