"""`zoo copy`: an algorithm as one file that stands alone.

`source` finds what an algorithm's file reaches, `fold` decides what its settings decide, `inline` and `prune` take out
what is left over, `write` puts the rest in reading order.
"""
