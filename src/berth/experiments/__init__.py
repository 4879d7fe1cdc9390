"""Experiments: what is asked of the simulator, one module a question."""
