"""Scripts for measurements, comparisons with other libraries, and plots. They are not installed."""
