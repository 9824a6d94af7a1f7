"""Models that agents learn: of the environment, of what collected the data; policies that turn noise into actions."""
