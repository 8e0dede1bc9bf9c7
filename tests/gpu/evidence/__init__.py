"""Everything that the project says about GPUs, seen on one with one command: `python -m tests.gpu.evidence`.

A run is a row of parts, each in a process of its own with a time limit of its own. A part carries out commands, notes
numbers and tables, and says of each of its promises what was seen. What every part has found so far is written after
each of its commands; `evidence.json` puts them together and is rewritten whole after each part.

    promises    what is promised, as numbers with limits, and what became of it
    commands    one command, with its output in files and an end that comes in time
    work        what a part does, and writes down
    parts/      the parts, in the order of their worth, each with what it takes on an H200
    schedule    which parts there is time for, and what happens to those that hang
    book        evidence.json
    machine     what GPU, driver and versions they are
    keeping     what is worth committing afterwards: ceilings, fixtures, tables; and one archive of it all
    screen      the table at the end
"""
