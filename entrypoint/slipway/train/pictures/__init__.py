"""Labelled pictures: where they come from, how they are varied for training, and which of them a model gets wrong."""
