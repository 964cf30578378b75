"""What a worker puts in front of a line for the launcher, which reads all lines and takes it away."""

# This line is for the log alone. A worker marks a line only where the launcher said that it shows a bar (SLIPWAY_PROGRESS).
LOG_ALONE = b"\x1f"
