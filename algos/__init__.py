"""One algorithm, one file; a file's name is its registration."""
