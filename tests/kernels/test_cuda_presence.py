"""NVIDIA devices that the system shows, and the command that installs packages for them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lamella.kernels.cuda.presence import install_command, nvidia_device


def make(root: Path, file: str, text: str = "") -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


@pytest.mark.parametrize(
    ("files", "is_there"),
    [
        ({}, False),
        ({"dev/nvidia0": ""}, True),
        ({"dev/nvidiactl": ""}, True),
        ({"dev/nvidia-modeset": ""}, False),
        ({"proc/driver/nvidia/gpus/0000:01:00.0/information": ""}, True),
        ({"proc/driver/nvidia/version": ""}, False),
        ({"usr/lib/wsl/lib/libcuda.so.1": "", "dev/dxg": ""}, True),
        ({"dev/dxg": ""}, False),
        ({"dev/nvhost-gpu": ""}, True),
        ({"VENDOR": "0x10de", "CLASS": "0x030200"}, True),
        ({"VENDOR": "0x10de", "CLASS": "0x030000"}, True),
        ({"VENDOR": "0x10de", "CLASS": "0x040300"}, False),  # its sound
        ({"VENDOR": "0x1002", "CLASS": "0x030000"}, False),  # AMD
    ],
)
def test_devices_are_found_by_files(tmp_path: Path, files: dict[str, str], is_there: bool) -> None:
    for name, text in files.items():
        pci = name in ("VENDOR", "CLASS")
        path = f"sys/bus/pci/devices/0000:01:00.0/{name.lower()}" if pci else name
        make(tmp_path, path, f"{text}\n")
    assert nvidia_device(tmp_path, "linux") is is_there


def test_other_systems(tmp_path: Path) -> None:
    assert nvidia_device(tmp_path, "win32")
    assert not nvidia_device(tmp_path, "darwin")


def test_the_command_is_for_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    command = install_command()
    assert command.startswith(f"{sys.executable} -m pip install 'cuda-bindings<13,>=12.9' ")
    assert command.endswith("'nvidia-cuda-nvrtc-cu12<13,>=12.9'")
    monkeypatch.setattr(sys, "executable", "/a b/python")
    assert install_command().startswith("'/a b/python' -m pip")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert install_command().endswith(", as a user who may write there")
