"""NVIDIA devices that the system shows, and how to install the packages that use them.

Looks at files of Linux only, so that a machine without a device needs no package of NVIDIA.
Tested by tests/kernels/test_cuda_presence.py.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path("/")
DEVICE_FILES: Final = (
    "dev/nvidia[0-9]*",
    "dev/nvidiactl",
    "dev/nvhost-gpu",  # Jetson
    "dev/nvgpu/*",  # Jetson
    "proc/driver/nvidia/gpus/*",
    "usr/lib/wsl/lib/libcuda.so*",  # WSL: /dev/dxg is there for all makers
)
NVIDIA: Final = "0x10de"  # PCI's number of the maker
DISPLAY: Final = "0x03"  # PCI's class of GPUs, its first byte


def nvidia_device(root: Path = ROOT, platform: str = sys.platform) -> bool:
    """True if this machine may have an NVIDIA device. Always True on Windows, where no file
    shows it."""
    if platform == "win32":
        return True
    return any(any(root.glob(pattern)) for pattern in DEVICE_FILES) or _on_pci(root)


def _on_pci(root: Path) -> bool:
    return any(
        _text(device / "vendor") == NVIDIA and _text(device / "class").startswith(DISPLAY)
        for device in root.glob("sys/bus/pci/devices/*")
    )


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def install_command() -> str:
    """The command that installs the missing packages for this Python, however Lamella itself was
    installed."""
    needs = importlib.metadata.requires("lamella") or []
    packages = [need.partition(";")[0].strip() for need in needs if _is_for(need, "cuda")]
    command = shlex.join([sys.executable, "-m", "pip", "install", *packages])
    if os.access(sysconfig.get_path("purelib"), os.W_OK):
        return command
    return f"{command}, as a user who may write there"


def _is_for(need: str, extra: str) -> bool:
    return need.partition(";")[2].replace('"', "'").strip() == f"extra == '{extra}'"
