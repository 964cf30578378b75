"""Snapshots: written, verified, and gone on from."""
