"""What is said in words, of three kinds.

A caution says why a number may be off, a finding answers a question from cells, and a note says how it was done or why
a cell has no numbers. `phrases` has what sentences are made of.
"""
