"""What a run's ranks printed, on all nodes whose logs lie here: read as one stream, told to people, packed for a bug report."""
