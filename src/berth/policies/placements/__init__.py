"""Placements: where one job goes."""
