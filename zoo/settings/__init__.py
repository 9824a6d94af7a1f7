"""What a run is set: its keys, presets and command-line overrides, and which algorithms and environments there are."""
