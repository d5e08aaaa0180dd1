"""The library for people: the questions of the command line as Python functions, with typed results for notebooks.

A function here asks the verb of the same name, with the same words, and so gives the same figures. What it returns is
the noun that ``--json`` prints, which can show itself as a line, a table, a frame or a chart.
"""
