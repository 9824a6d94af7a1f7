"""A run from its settings to its results: environments or data, the loop, evaluations, checkpoints, records."""
