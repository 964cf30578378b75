"""The processes of a node: torchrun and its workers, started, watched and ended."""
