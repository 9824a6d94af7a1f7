"""Models that agents learn beside their policies: of the environment, and of the policy that collected the data."""
