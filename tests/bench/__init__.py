"""Benchmarks of sysbench itself: ratios within one run, printed with what is promised, never asserted.

Each is a script: `python -m tests.bench.startup`, `.fidelity`, `.overhead`, `.simulation`.
"""
