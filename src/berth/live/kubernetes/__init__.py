"""Kubernetes: pods become jobs, decisions lift gates, kube-scheduler binds, and the node enforces the shares."""
