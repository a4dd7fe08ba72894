"""Runs steps of a loaded model for tests, with F32 pools and pages in random order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lamella.alloc import alloc_tensors, tensor_get, tensor_set
from lamella.graph import GGMLType, Graph, Tensor
from lamella.model.arch import GraphInputs, KVLayer
from lamella.model.layer_memory import groups_of, index_of
from lamella.model.loader import LoadedModel
from lamella.sched import Scheduler

F32Array = npt.NDArray[np.float32]
PAGE_SIZE = 8


class Runner:
    """A model with a pool of pages. Each sequence has its own pages for `n_ctx` positions."""

    def __init__(self, model: LoadedModel, n_ctx: int = 64, n_seqs: int = 1) -> None:
        self.model = model
        self.n_ctx = n_ctx
        n_each = -(-n_ctx // PAGE_SIZE)
        pages = np.random.default_rng(7).permutation(n_each * n_seqs)
        self.pages = pages.reshape(n_seqs, n_each).astype(np.int32)
        self.kv = [self._pool(il) for il in range(model.hp.n_layer)]
        self.states = {
            il: [Tensor(GGMLType.F32, (n, n_seqs + 1)) for n in m.states]
            for il, m in enumerate(model.hp.memory)
        }
        for il, states in self.states.items():
            alloc_tensors(states, self.model.state_home(il).buffer_type)
        self.backends = [device.init_backend() for device in model.devices]
        self.scheduler = Scheduler(self.backends)

    def _pool(self, il: int) -> KVLayer | None:
        shape, n_cells = self.model.hp.layers[il], self.pages.size * PAGE_SIZE
        if not shape.memory.kind.is_paged:
            return None
        layer = KVLayer.new(shape.memory, n_cells, GGMLType.F32, GGMLType.F32)
        alloc_tensors(layer.named(f"{{}}-{il}").tensors, self.model.kv_home(il).buffer_type)
        return layer

    def build(self, n_tokens: int, n_outputs: int) -> tuple[GraphInputs, Tensor]:
        """Return the inputs and logits of a graph."""
        n_seqs, n_pages = self.pages.shape
        model = self.model
        inputs = GraphInputs.new(n_tokens, n_outputs, n_pages, n_seqs, model.hp.memory)
        logits = model.arch.build(
            model.weights,
            inputs,
            self.kv,
            page_size=PAGE_SIZE,
            n_ctx=self.n_ctx,
            states=self.states,
        )
        return inputs, logits

    def step(self, batch: Sequence[tuple[int, int, int]], out_ids: Sequence[int]) -> F32Array:
        """Return the logits [n_outputs, n_vocab] of a batch of (token, sequence, position)."""
        inputs, logits = self.build(len(batch), len(out_ids))
        tokens, seq, pos = np.array(batch, np.int32).T
        cells = self.pages[seq, pos // PAGE_SIZE] * PAGE_SIZE + pos % PAGE_SIZE
        scheduled = self.scheduler.alloc_graph(Graph(logits))
        values = [
            (inputs.tokens, tokens),
            (inputs.pos, pos),
            (inputs.seq, seq),
            (inputs.out_ids, out_ids),
        ]
        for group, of_group in zip(inputs.groups, groups_of(self.model.hp.memory), strict=True):
            window = of_group.window
            begin = pos * 0 if window is None else window.begin(pos)
            values += [(group.pages, self.pages), (group.cells, cells)]
            values += [(group.begin, begin), (group.end, pos + 1)]
        index = index_of(self.model.hp.memory)
        if index is not None and inputs.rows is not None and inputs.n_chosen is not None:
            values.append((inputs.rows, np.arange(len(batch))))
            values.append((inputs.n_chosen, np.minimum(pos + 1, index[1].top_k)))
        if inputs.slots is not None:  # the slot of a sequence is its number + 1
            values.append((inputs.slots, np.stack([np.where(pos > 0, seq + 1, -1), seq + 1], 1)))
        for leaf, value in values:
            if leaf.buffer is None:  # no node reads it
                continue
            tensor_set(leaf, np.asarray(value, np.int32))
        if self.model.arch.temperature is not None:
            tensor_set(inputs.attn_scale, self.model.arch.temperature.of(pos))
        self.scheduler.graph_compute(scheduled)
        return tensor_get(logits).view(np.float32).reshape(len(out_ids), -1)

    def prompt(self, tokens: Sequence[int], chunk: int = 512) -> F32Array:
        """Return the logits after each token of sequence 0, [n_tokens, n_vocab]."""
        batch = [(token, 0, pos) for pos, token in enumerate(tokens)]
        parts = [batch[i : i + chunk] for i in range(0, len(batch), chunk)]
        return np.concatenate([self.step(part, range(len(part))) for part in parts])

    def close(self) -> None:
        self.scheduler.free()
        for backend in self.backends:
            backend.free()
        self.model.free()
