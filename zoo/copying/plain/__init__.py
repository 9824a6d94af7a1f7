"""What a copy of an algorithm has in place of the zoo's own: the same results, in less code, less fast.

A definition here stands in for the zoo's of the same name. The copies' tests hold the two to the same numbers.
"""
