"""Text as training data, as tokens, and as what a model writes."""
