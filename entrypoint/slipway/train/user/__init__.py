"""A user's own training loop: what it consists of, where it was in its data, and how it resumes (docs/own-script.md)."""
