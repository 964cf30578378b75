"""A worker's life in its job: its place, its group, the stop flag, what it exchanges, its outcome."""
