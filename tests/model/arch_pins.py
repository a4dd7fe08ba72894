"""Tiny models of architectures that have no golden model: made from keys, shapes and a seed.

`tests/data/arch-pins.json` has the keys and tensors of one model for each of these architectures,
and some log-probabilities of it. They were recorded when the architecture agreed with Hugging
Face's transformers, or another reference, on a model of the same keys and tensors (KL <= 1e-6). So
they show that it still computes the same. To record all decoders of a folder of GGUF files anew:

    cd tests/model; python arch_pins.py FOLDER
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from arch_goldens import log_softmax
from arch_run import Runner
from tiny_models import write_keys

from lamella.kernels.sim import SimDevice
from lamella.model.arch import ARCHITECTURES
from lamella.model.gguf import Array, GGUFFile, open_gguf
from lamella.model.loader import load_model
from lamella.model.placement import Placement
from lamella.sched import DeviceType

F32Array = npt.NDArray[np.float32]
FILE = Path(__file__).parents[1] / "data" / "arch-pins.json"
TOKENS = [(7 * i * i + 3 * i + 1) % 509 for i in range(40)]
STEP = 32  # between the tokens whose log-probabilities are recorded


def write_pin(pin: dict[str, Any], path: Path) -> None:
    """Write the model of a pin."""
    writer = gguf.GGUFWriter(path, pin["arch"])
    write_keys(writer, pin["keys"])
    for name, ne in pin["tensors"].items():
        writer.add_tensor(name, weights_of(name, ne))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def weights_of(name: str, ne: list[int]) -> F32Array:
    """Return random weights: near 1 for factors, of the size of one over the root for matrices."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    x = rng.standard_normal(tuple(reversed(ne)))
    if "norm" in name or "scale" in name or name.startswith("rope_"):
        x = 1 + np.abs(x) / 8
    else:
        x /= 8 if len(ne) == 1 else np.sqrt(ne[0])
    return x.astype(np.float32)


def log_probs(path: Path) -> list[float]:
    """Return the log-probabilities of every STEP-th token after TOKENS, with NumPy's kernels."""
    model = load_model(path, Placement(cpu=SimDevice("CPU", DeviceType.CPU)))
    runner = Runner(model, n_ctx=64)
    try:
        row = log_softmax(runner.prompt([t % model.hp.n_vocab for t in TOKENS], chunk=17)[-1])
    finally:
        runner.close()
    return [round(float(x), 4) for x in row[::STEP]]


def _pin_of(file: GGUFFile) -> dict[str, Any]:
    keys = {}
    for key in file.metadata:
        value = file.metadata[key]
        if not key.startswith(("general.", "tokenizer.")):
            keys[key] = value.numbers().tolist() if isinstance(value, Array) else value
    tensors = {name: list(info.ne) for name, info in file.tensors.items()}
    return {"arch": file.metadata.str("general.architecture"), "keys": keys, "tensors": tensors}


def main(folder: Path) -> None:
    pins: dict[str, Any] = {}
    for path in sorted(folder.glob("*.gguf")):
        with open_gguf(path) as file:
            pin = _pin_of(file)
        if pin["arch"] not in ARCHITECTURES:
            continue
        model = folder / "pin.tmp"
        write_pin(pin, model)
        pins[path.stem.removeprefix("tiny-")] = {**pin, "logprobs": log_probs(model)}
        model.unlink()
    lines = (
        f"{json.dumps(name)}: {json.dumps(pin, separators=(',', ':'))}"
        for name, pin in pins.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
