"""Policies that start combinations of waiting jobs together on a GPU."""
