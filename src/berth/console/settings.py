"""Settings of a console: where it listens, whom it trusts, what it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from berth.errors import SettingError


@dataclass(frozen=True, slots=True)
class Listen:
    """A TCP address."""

    host: str = "127.0.0.1"
    port: int = 8787


@dataclass(frozen=True, slots=True)
class Settings:
    """What `berth console` was started with."""

    state: Path
    """The console's own files: tokens, the audit log, kept what-ifs."""
    listen: Listen = field(default_factory=Listen)
    history: Path | None = None
    """A history folder to read, or None."""
    local_socket: Path | None = None
    """The socket of this machine's broker, or None."""
    slurm_state: Path | None = None
    """Where `berth slurm run` keeps its status and decisions, or None."""
    kubeconfig: Path | None = None
    """The kubeconfig of the cluster to show, or None."""
    actions: bool = False
    """Whether anything may be changed from the pages at all."""
    proxies: frozenset[str] = frozenset()
    """Addresses of reverse proxies whose user header is believed."""
    proxy_header: str = "X-Forwarded-User"
    operators: frozenset[str] = frozenset()
    """Users who may act on the jobs of all users and on the cluster."""
    certificate: Path | None = None
    key: Path | None = None
    what_if_processes: int = 1
    """How many replays run at a time."""
    what_if_mem_mib: int = 4096
    """The most memory that one replay may use."""


def parse_listen(text: str) -> Listen:
    """HOST:PORT or [IPv6]:PORT; raises SettingError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise SettingError(f"--listen {text}; expected HOST:PORT, such as 127.0.0.1:8787")
    return Listen(host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port))
