"""What the measured process reads and sets on its own machine: clocks, devices, allocators, ranges, formats.

Nothing here knows what is being measured, and nothing is probed on import.
"""
