"""Interruption notices: what a cloud announces to a machine that it is about to take back."""
