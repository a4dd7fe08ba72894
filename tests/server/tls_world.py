"""Shared by the tests of TLS: a certificate and its key."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_pem(folder: Path) -> tuple[str, str]:
    """The files of a new certificate for localhost and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = str(folder / "cert.pem"), str(folder / "key.pem")
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    what = ["req", "-x509", *kind, "-nodes", "-days", "2"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *what, *name, "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
    )
    return files
