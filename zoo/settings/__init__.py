"""A run's settings: keys, presets and overrides; and the registry of algorithms and environments."""
