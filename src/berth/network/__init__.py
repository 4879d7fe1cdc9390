"""The network that scores combinations of jobs, as plain arrays: what policies decide with and learners train.

What is trained takes `xp`, which is NumPy or `jax.numpy`, so that the network which was trained is the one that
decides; what it is shown is compiled. Nothing here imports JAX. Letters of shapes: K jobs that run on the GPU, M
waiting jobs that are seen, T = K + M of both in this order, P seats for those of one combination, C combinations, H
steps of the horizon, G of them that are looked at together with the neighbours, 4 resources (GPU, memory, cores, PCIe).
"""
