"""Schemes: what else may happen while the first job of an order does not fit."""
