"""Models that agents learn beside their policies: of the environment, and of whoever made the data."""
