"""Names of people replaced by keyed hashes, with the key outside the history.

The same name under the same key is the same pseudonym, so that statistics stay what they are; without the key
a reader can neither tell who it is nor try names out (BLAKE2b with a key).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

from berth.errors import SettingError, cause_of

PSEUDONYMISED: Final = ("user", "account", "name")
"""The columns that are replaced; comment and command, which may name a user, are left empty."""

KEY_BYTES: Final = 32


def read_key(path: Path, history: Path) -> bytes:
    """The key in a file, which is made, for its owner alone, where there is none.

    SettingError where the file lies in the history, or holds no key.
    """
    if path.resolve().is_relative_to(history.resolve()):
        raise SettingError(
            f"the key {path} lies in the history {history}; keep it where the history is not copied to"
        )
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(KEY_BYTES) + "\n")
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read as a key: {cause_of(error)}") from error
    if len(key) < KEY_BYTES // 2:
        raise SettingError(f"{path} holds a key of {len(key)} bytes; expected {KEY_BYTES}")
    return key


def key_mark(key: bytes) -> int:
    """A number that tells keys apart and does not tell the key; 0 for none."""
    return int.from_bytes(hashlib.blake2b(key, person=b"mark", digest_size=6).digest(), "big") if key else 0


def pseudonym(key: bytes, kind: str, name: str) -> str:
    """What stands for a name of one kind; nothing stays nothing."""
    if not name:
        return ""
    digest = hashlib.blake2b(name.encode(), key=key, person=kind.encode()[:16], digest_size=8)
    return f"{kind[0]}{digest.hexdigest()}"
