"""What the command line answers about saved runs, recorded so that a change of any byte is seen.

`commands.txt` lists the command lines, `answers/` what they answered when they were last recorded; the saved runs are
in `tests/fixtures/runs`.

    python -m tests.compatibility                          compare every answer
    python -m tests.compatibility --only '[memory]'        of a group, or of command lines, with this in them
    python -m tests.compatibility --every 10               of a tenth of them
    python -m tests.compatibility --record --only=--find   record these anew, after a change that is meant
    python -m tests.compatibility --keep DIR               write whole answers there, long ones and pages too

A change of an answer is either a defect or a decision: whoever records it anew names it in the change log.
"""
