"""For tests of downloads: a fake hub, and settings of huggingface-hub for it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import close_session, constants, get_session

from lamella.base.folders import cache_folder
from lamella.model.hub import library


@contextmanager
def hub_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Run a fake hub, and patch the library's settings: it has read the environment already."""
    with FakeHub() as hub:
        template = "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in {
            "ENDPOINT": hub.url(),
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.url() + template,
            "HF_HUB_CACHE": str(folder / "cache"),
            "HF_TOKEN_PATH": str(folder / "token"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_TELEMETRY": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        _share_kernels(folder / "lamella")
        monkeypatch.setenv("LAMELLA_CACHE", str(folder / "lamella"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "127.0.0.1,localhost")
        monkeypatch.setattr(library, "WAIT_S", 0.0)
        # the fake hub has no TLS, and to read all certificates takes as long as a whole test
        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
        close_session()  # it may have proxies, or a connection to an earlier hub
        get_session()  # made here, as two threads could make one each
        yield hub
        close_session()


def _share_kernels(cache: Path) -> None:
    """Link the user's kernels into a new cache: compiling them again takes most of a minute."""
    kernels = cache_folder("kernels")
    kernels.mkdir(parents=True, exist_ok=True)
    cache.mkdir(exist_ok=True)
    (cache / "kernels").symlink_to(kernels)


def environment(hub: FakeHub, folder: Path) -> dict[str, str]:
    """Return the environment of a process that uses the hub."""
    return {
        "HF_ENDPOINT": hub.url(),
        "HF_HOME": str(folder / "home"),
        "HF_HUB_CACHE": str(folder / "cache"),
        "HF_TOKEN": "",
        "HF_HUB_OFFLINE": "",
        "LAMELLA_CACHE": str(folder / "lamella"),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
