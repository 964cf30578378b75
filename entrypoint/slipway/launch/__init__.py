"""The launcher: from the environment to a supervised torchrun. Nothing in here imports torch."""
