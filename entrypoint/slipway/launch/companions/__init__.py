"""What accompanies a job on one node (companion.py says when each call comes): copies in a store, metrics, notices."""
