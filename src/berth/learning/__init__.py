"""Learning which waiting jobs to start together on a GPU: environment, learners, training. Needs the extra `learn`.

JAX, Optax, Equinox and Gymnasium are imported in this package alone; what is learned leaves it as plain arrays
(`berth.network`), so that deciding needs none of them.
"""
