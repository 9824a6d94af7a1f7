"""The command line's verbs, a file each."""
