"""What `slipway trace` makes of the ranks' traces: one file, and a table."""
