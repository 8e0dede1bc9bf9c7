"""What the command line answers about saved runs, recorded so that a change of any byte is seen.

`commands.txt` lists the command lines, `answers/` what they answered when they were last recorded; the saved runs are
in `tests/fixtures/runs`.

    python -m tests.compatibility                         compare every answer
    python -m tests.compatibility --only 'memory '        only commands with this in them
    python -m tests.compatibility --record --only --find  record these anew, after a change that is meant

A change of an answer is either a defect or a decision: whoever records it anew names it in the change log.
"""
