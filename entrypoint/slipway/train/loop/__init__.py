"""The one training loop: from a task to trained weights."""
