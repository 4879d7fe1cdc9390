"""Kubernetes: pods become jobs, the scheduler's decisions become bindings, and the node enforces them."""
