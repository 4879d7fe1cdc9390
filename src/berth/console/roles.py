"""What a person may do in the console."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Each may do what the ones before it may."""

    VIEWER = "viewer"
    """Sees the cluster, the queue and the figures; of jobs no command and no output."""
    USER = "user"
    """Sees all of their own jobs too, and may hold, release and cancel them where actions are allowed."""
    OPERATOR = "operator"
    """Sees and may change everything."""

    def includes(self, other: Role) -> bool:
        """Whether it may do all that the other may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who is looking."""

    user: str
    role: Role
    via: str
    """How they were recognised: `token` or `proxy`."""
    csrf: str
    """What a request that changes something must carry; empty where a token comes with each request."""

    def owns(self, user: str) -> bool:
        """Whether all of this user's jobs may be seen and changed."""
        return self.role is Role.OPERATOR or (self.role is Role.USER and self.user == user)
