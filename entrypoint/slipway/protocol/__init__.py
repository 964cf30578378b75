"""What launcher and workers both know: files, phases, words and errors. Standard library only."""
