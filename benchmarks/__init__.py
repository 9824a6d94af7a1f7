"""Suites, statistics and speed measurements."""
