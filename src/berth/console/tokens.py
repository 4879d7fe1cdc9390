"""Tokens that let a browser or a program in, kept as hashes in one file that only its owner reads."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from berth.console.roles import Role
from berth.errors import SettingError
from berth.files import write_whole


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the file."""

    user: str
    role: str
    sha256: str
    """Of the token's text, as hexadecimal digits."""
    ends_s: float | None
    """Unix time after which it is refused; None for never."""


class Tokens:
    """The file of tokens; it is read again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_of: tuple[int, int] | None = None
        self._tokens: dict[str, Token] = {}

    def add(self, user: str, role: Role, days: float | None = None) -> str:
        """Make a token, keep its hash, and return its text, which is nowhere else."""
        text = secrets.token_urlsafe(32)
        ends_s = None if days is None else time.time() + 86_400 * days
        self._refresh()
        token = Token(user, role.value, _digest(text), ends_s)
        left = [each for each in self._tokens.values() if each.ends_s is None or each.ends_s > time.time()]
        self._write([*left, token])
        return text

    def remove(self, user: str) -> int:
        """Take back all tokens of a user, and return how many there were."""
        self._refresh()
        left = [token for token in self._tokens.values() if token.user != user]
        count = len(self._tokens) - len(left)
        if count:
            self._write(left)
        return count

    def all(self) -> list[Token]:
        """Every entry, expired ones too."""
        self._refresh()
        return list(self._tokens.values())

    def of(self, text: str, now_s: float) -> Token | None:
        """The entry of a token's text, or None if there is none or it has expired."""
        return self.by_digest(_digest(text), now_s)

    def by_digest(self, digest: str, now_s: float) -> Token | None:
        """The entry of a hash, which is what a session keeps: a token that was revoked ends its sessions."""
        self._refresh()
        token = self._tokens.get(digest)
        return None if token is None or (token.ends_s is not None and now_s >= token.ends_s) else token

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._tokens, self._read_of = {}, None
            return
        if self._read_of == (status.st_mtime_ns, status.st_ino):
            return
        try:
            rows = [Token(**each) for each in json.loads(self._path.read_text(encoding="utf-8"))]
            self._tokens = {token.sha256: token for token in rows if Role(token.role)}
        except (ValueError, TypeError) as error:
            raise SettingError(
                f"{self._path}: not a file of tokens ({error}); remove it, and berth console makes a new one"
            ) from error
        self._read_of = (status.st_mtime_ns, status.st_ino)

    def _write(self, tokens: list[Token]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps([asdict(token) for token in tokens], indent=1) + "\n"
        write_whole(self._path, text, private=True)
        self._read_of = None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
