"""The policy and the knowledge of every site whose operator chose none.

It imports nothing, so that processes which must stay small can ask it.
"""

from __future__ import annotations

DEFAULT_POLICY = "easy+priority+best-fit"
DEFAULT_KNOWLEDGE = "history"
