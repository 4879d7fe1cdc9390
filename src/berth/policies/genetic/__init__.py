"""Genetic search over a batch of waiting jobs."""
