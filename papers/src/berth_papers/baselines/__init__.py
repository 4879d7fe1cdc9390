"""The baselines of the thesis: policies, their models, and how these are trained."""
