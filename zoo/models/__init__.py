"""Models that agents learn: of the environment, of what collected the data; policies that make actions of noise."""
