"""Experiments on genetic scheduling: utilisation, and the distance to the optimum."""
