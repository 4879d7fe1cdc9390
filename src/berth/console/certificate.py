"""A certificate of the console's own, so that no token crosses a network in the clear."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from ipaddress import ip_address
from pathlib import Path

DAYS = 825
"""How long it is valid; browsers refuse longer ones."""
RENEW_S = 86_400


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_certificate(folder: Path, host: str, days: int = DAYS) -> tuple[Path, Path] | None:
    """The files of certificate and key, made by openssl if they are missing or about to end; None without openssl.

    The certificate names this machine, and the address that is listened on. After a rename there is another one.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    names = [f"DNS:{name}" for name in dict.fromkeys((socket.gethostname(), "localhost"))] + ["IP:127.0.0.1"]
    try:
        if not ip_address(host).is_unspecified:
            names.append(f"IP:{host}")
    except ValueError:
        names.append(f"DNS:{host}")
    of_names = hashlib.sha256(" ".join(names).encode()).hexdigest()[:8]
    certificate, key = folder / f"own-{of_names}.crt", folder / f"own-{of_names}.key"
    if certificate.exists() and key.exists():
        check = [openssl, "x509", "-checkend", str(RENEW_S), "-noout", "-in", str(certificate)]
        if subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return certificate, key
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-keyout", str(key), "-out", str(certificate), "-days", str(days)]
    words += ["-subj", "/CN=berth console", "-addext", f"subjectAltName={','.join(names)}"]
    done = subprocess.run([openssl, *words], capture_output=True, check=False)
    return (certificate, key) if done.returncode == 0 else None


def fingerprint(certificate: Path) -> str:
    """The SHA-256 of a certificate, as browsers show it."""
    words = ["openssl", "x509", "-fingerprint", "-sha256", "-noout", "-in", str(certificate)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.strip().partition("=")[2]
