"""Runs steps of a loaded model for tests, with F32 pools and pages in random order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lamella.alloc import alloc_tensors, tensor_get, tensor_set
from lamella.graph import GGMLType, Graph, Tensor
from lamella.model.arch import GraphBuild, GraphInputs, KVLayer
from lamella.model.loader import LoadedModel
from lamella.sched import Scheduler

F32Array = npt.NDArray[np.float32]
PAGE_SIZE = 8


class Runner:
    """A model with a pool of pages. Each sequence has its own pages for `n_ctx` positions."""

    def __init__(self, model: LoadedModel, n_ctx: int = 64, n_seqs: int = 1) -> None:
        self.model = model
        n_each = -(-n_ctx // PAGE_SIZE)
        pages = np.random.default_rng(7).permutation(n_each * n_seqs)
        self.pages = pages.reshape(n_seqs, n_each).astype(np.int32)
        self.kv = [self._pool(il) for il in range(model.hp.n_layer)]
        self.backends = [device.init_backend() for device in model.devices]
        self.scheduler = Scheduler(self.backends)

    def _pool(self, il: int) -> KVLayer:
        hp, n_cells = self.model.hp, self.pages.size * PAGE_SIZE
        k = Tensor(GGMLType.F32, (hp.n_embd_k(il), n_cells), name=f"k-{il}")
        v = Tensor(GGMLType.F32, (hp.n_embd_v(il), n_cells), name=f"v-{il}")
        alloc_tensors([k, v], self.model.kv_home(il).buffer_type)
        return KVLayer(k, v)

    def build(self, n_tokens: int, n_outputs: int) -> tuple[GraphInputs, Tensor]:
        """Return the inputs and logits of a graph."""
        n_seqs, n_pages = self.pages.shape
        inputs = GraphInputs.new(n_tokens, n_outputs, n_pages, n_seqs)
        model = self.model
        build = GraphBuild(model.hp, model.weights, inputs, self.kv, PAGE_SIZE)
        return inputs, model.arch.build(build)

    def step(self, batch: Sequence[tuple[int, int, int]], out_ids: Sequence[int]) -> F32Array:
        """Return the logits [n_outputs, n_vocab] of a batch of (token, sequence, position)."""
        inputs, logits = self.build(len(batch), len(out_ids))
        tokens, seq, pos = np.array(batch, np.int32).T
        cells = self.pages[seq, pos // PAGE_SIZE] * PAGE_SIZE + pos % PAGE_SIZE
        scheduled = self.scheduler.alloc_graph(Graph(logits))
        values = {
            **{"tokens": tokens, "pos": pos, "begin": 0 * pos, "end": pos + 1, "seq": seq},
            **{"pages": self.pages, "cells": cells, "out_ids": out_ids},
        }
        for name, value in values.items():
            tensor_set(getattr(inputs, name), np.asarray(value, np.int32))
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
