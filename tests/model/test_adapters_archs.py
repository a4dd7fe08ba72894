"""LoRA adapters of all matrices that adapters can change, in every architecture that has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arch_goldens import GOLDENS
from arch_pins import FILE, write_pin
from make_adapter import arch_of, named, random_matrices, write_adapter

from lamella.graph.op import Op
from lamella.kernels.sim import SimDevice
from lamella.model.adapter_file import read_adapter
from lamella.model.arch import open_architecture
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.sched import DeviceType

PINS: dict[str, Any] = json.loads(FILE.read_text())
# those whose rows of outputs are chosen early, or whose matrices are parts of tensors
QUICK = {"talkie", "tiny-gemma4", "deci", "glm-edge", "tiny-deepseek2", "smallthinker"}
MODELS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.full)
    for name in (*PINS, *GOLDENS)
]


def adapted(path: Path, folder: Path) -> LoadedModel:
    """The model with an adapter of all matrices that adapters can change. Skips encoders."""
    with open_gguf(path, header_only=True) as file:
        arch = open_architecture(file)
    if not arch.generates:
        pytest.skip("the model computes embeddings only")
    specs = [spec for spec in arch.weights() if spec.adapts and spec.op is Op.MUL_MAT]
    names = {part.tensor for spec in specs for ps in spec.files if len(ps) == 1 for part in ps}
    changed = "|".join(f"^{name}$" for name in names - {"token_embd.weight"})
    matrices = random_matrices(path, 2, changed=changed, strength=0.5)
    write_adapter(folder / "a.gguf", arch_of(path), named(matrices))
    cpu = SimDevice("CPU", DeviceType.CPU)
    return load_model(path, Placement(cpu=cpu), adapters=[read_adapter(folder / "a.gguf")])


@pytest.mark.parametrize("name", MODELS)
def test_rows_have_the_scales_of_their_tokens(name: str, tmp_path: Path) -> None:
    """As many outputs as tokens fit in the graph, but the first token is no output."""
    path = GOLDENS.get(name, tmp_path / "m.gguf")
    if name in PINS:
        write_pin(PINS[name], path)
    with adapted(path, tmp_path) as model, Context(model, ContextParams(n_ctx=64)) as context:
        scales = model.adapters.initial_scales
        assert scales is not None
        found = []
        for is_mixed in (False, True):
            first, second = context.pool.new_sequence(), context.pool.new_sequence()
            batch = Batch()
            if is_mixed:
                context.append(first, 1)
                batch.add([5], first, 0, lora_scales=scales)
            context.append(second, 3)
            batch.add([7, 8, 9], second, 0, 3)
            found.append(context.decode(batch))
            for seq in (first, second):
                seq.free()
        assert np.array_equal(found[0], found[1])
        seq, batch = context.pool.new_sequence(), Batch()
        context.append(seq, 3)
        batch.add([7, 8, 9], seq, 0, 3, lora_scales=scales)
        assert np.abs(context.decode(batch) - found[0]).max() > 1e-3
