"""What reproduces and studies the four works that berth builds on; berth itself imports nothing of it.

It adds commands, policies and learners to an installed berth: see `[project.entry-points]` in its `pyproject.toml`.
"""

__version__ = "0.2.0"
