"""What came of a job: which cause was first, whether to start again, and how people are told."""
