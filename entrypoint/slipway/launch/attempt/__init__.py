"""One attempt on this node: torchrun started, watched, stopped, and how it ended."""
