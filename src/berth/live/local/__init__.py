"""The queue of one machine: a broker that owns socket, store and jobs, and a brain that decides.

The broker and the client import no NumPy, so that a client answers at once and the part that must not fail is small.
"""
