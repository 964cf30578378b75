"""Training code: one loop, its snapshots, and the workloads that use it. Importing this package loads no torch."""
