"""How processes share the work of a step: data parallel, or the stages of a pipeline."""
