"""Slipway launches PyTorch data-parallel training the same way everywhere."""

__version__ = "0.1.0.dev0"
