"""Models and data from the Hub, and what went wrong with it."""
