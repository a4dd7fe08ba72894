"""Tiny models of architectures that have no golden model: made from keys, shapes and a seed.

`tests/data/arch-pins.json` has the keys and tensors of one model for each of these architectures,
and some results of it: log-probabilities, or elements of an encoder's vector. They were recorded
when the architecture agreed with Hugging Face's transformers, or another reference, on a model of
the same keys and tensors (KL <= 1e-6, elements within 1e-4). So they show that it still computes
the same. To record the models of a folder of GGUF files:

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
from lamella.model.arch import ARCHITECTURES, open_architecture
from lamella.model.embed_context import EmbedContext, embeds
from lamella.model.gguf import Array, GGUFFile, Scalar, open_gguf
from lamella.model.loader import load_model
from lamella.model.params import EmbeddingParams
from lamella.model.placement import Placement
from lamella.sched import DeviceType

F32Array = npt.NDArray[np.float32]
FILE = Path(__file__).parents[1] / "data" / "arch-pins.json"
TOKENS = [(7 * i * i + 3 * i + 1) % 509 for i in range(40)]
STEP = 32  # between the tokens whose log-probabilities are recorded
N_ELEMENTS = 12  # recorded elements of a vector
TYPES = "tokenizer.ggml.token_type_count"


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
    if name.endswith("ssm_a"):  # decays are negative
        return (-np.abs(x)).astype(np.float32)
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


def vector(path: Path) -> list[float]:
    """Return the first elements of the vector of TOKENS, with NumPy's kernels."""
    model = load_model(path, Placement(cpu=SimDevice("CPU", DeviceType.CPU)))
    with model, EmbedContext(model) as context:
        found = context.embed([np.array(TOKENS, np.int32) % model.hp.n_vocab])[0]
    return [round(float(x), 4) for x in found[:N_ELEMENTS]]


def results(path: Path) -> list[float]:
    """Return what is recorded of a model: elements of a vector if it is one for embeddings."""
    with open_gguf(path) as file:
        is_embedding = embeds(open_architecture(file), EmbeddingParams())
    return vector(path) if is_embedding else log_probs(path)


def _pin_of(file: GGUFFile) -> dict[str, Any]:
    keys = {
        key: _value(file.metadata[key])
        for key in file.metadata
        if key == TYPES or not key.startswith(("general.", "tokenizer."))
    }
    tensors = {name: list(info.ne) for name, info in file.tensors.items()}
    return {"arch": file.metadata.str("general.architecture"), "keys": keys, "tensors": tensors}


def _value(value: Scalar | Array) -> Any:
    if not isinstance(value, Array):
        return value
    return value.strings() if value.type.name == "STRING" else value.numbers().tolist()


def main(folder: Path) -> None:
    pins: dict[str, Any] = json.loads(FILE.read_text())
    for path in sorted(folder.glob("*.gguf")):
        with open_gguf(path) as file:
            pin = _pin_of(file)
        if pin["arch"] not in ARCHITECTURES:
            continue
        model = folder / "pin.tmp"
        write_pin(pin, model)
        pins[path.stem.removeprefix("tiny-")] = {**pin, "results": results(model)}
        model.unlink()
    lines = (
        f"{json.dumps(name)}: {json.dumps(pin, separators=(',', ':'))}"
        for name, pin in sorted(pins.items())
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
