"""The policies and the knowledge of sites whose operators chose none.

It imports nothing, so that processes which must stay small can ask it.
"""

from __future__ import annotations

DEFAULT_POLICY = "easy+priority+best-fit"
MACHINE_POLICY = "easy+priority+worst-fit"
"""Of one machine, where jobs that share GPUs take the one with the most left: none idles while others are crowded."""
DEFAULT_KNOWLEDGE = "history"
DEFAULT_GROW = "on"
"""GPU memory grows up to the card while it has room, for jobs that say only what they are promised."""
