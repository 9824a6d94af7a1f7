"""The parts of `speed.py`: subjects, each timed in its own process, and the page with the figures."""
