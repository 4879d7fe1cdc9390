"""The network that scores combinations of jobs, as plain arrays: what policies decide with and learners train.

What is trained takes `xp`, which is NumPy or `jax.numpy`, so that the network which was trained is the one that
decides; what it is shown is compiled. Nothing here imports JAX.
"""
