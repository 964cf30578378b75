"""One training script for each side of `bench/resilience.py`."""
