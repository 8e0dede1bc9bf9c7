"""What can be asked for: model sizes, the axis grammar, and one frozen spec per command.

Every default and every help text of the command line lives here and nowhere else.
"""
