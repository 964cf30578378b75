"""The run directory: which one, who holds it, what the launcher keeps in it, and what it tells."""
