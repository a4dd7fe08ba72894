"""The network: Lamella and PyTorch compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from export import write_gguf
from tiny_model import random_weights, tiny_pieces, tiny_shape
from vocabulary import BOS

import lamella

torch = pytest.importorskip("torch", reason="PyTorch is only there with the extra `recipe`")

from net import Net, weights_of  # noqa: E402 - it needs PyTorch


def test_logits_are_those_of_lamella(tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = Net(tiny_shape())
    path = tmp_path / "tiny.gguf"
    write_gguf(path, net.shape, weights_of(net), tiny_pieces(), "F32")
    ids = np.random.default_rng(1).integers(0, net.shape.n_vocab, 300).tolist()
    with lamella.load(path, type_k="f32", type_v="f32", n_threads=1) as model:
        actual = model.logits(ids)
    with torch.no_grad():
        wanted = net(torch.tensor([ids]))[0].numpy()
    assert np.abs(actual - wanted).max() < 1e-4
    assert np.abs(wanted).max() > 0.1


def test_documents_of_a_row_do_not_attend_to_each_other() -> None:
    torch.manual_seed(2)
    net = Net(tiny_shape())
    documents = [torch.tensor([[BOS, *range(300, 300 + n)]]) for n in (7, 12)]
    with torch.no_grad():
        together = net(torch.cat(documents, 1))
        first, second = (net(document) for document in documents)
    # the second document has later positions, but only differences of positions matter
    assert torch.allclose(together[:, :8], first, atol=1e-5)
    assert torch.allclose(together[:, 8:], second, atol=1e-5)


def test_the_weights_have_the_names_and_shapes_of_the_file() -> None:
    shape = tiny_shape()
    net = Net(shape)
    shapes = {name: weight.shape for name, weight in weights_of(net).items()}
    assert shapes == {name: weight.shape for name, weight in random_weights(shape).items()}
    assert net.n_weights() == sum(weight.size for weight in random_weights(shape).values())
