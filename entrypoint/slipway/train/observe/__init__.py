"""What is seen of a training run from outside of its steps: time, stragglers, traces, replicas."""
