"""The models that the workloads train."""
