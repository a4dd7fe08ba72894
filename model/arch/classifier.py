"""The keys of pooling, and classifiers: the scores that a reranker computes of a pair of texts.

Names are llama.cpp's (llama-graph.cpp, build_pooling).
Tested by tests/model/test_arch_classifier.py.
"""

from __future__ import annotations

from ...graph import Op, Tensor, ops
from ...graph.op import UnaryOp
from ..keys import Keys
from ..pooling import Pooling
from .build import Activation, GraphBuild
from .weights import Bias


def read_pooling(keys: Keys, key: str = "pooling_type") -> Pooling | None:
    """Return the pooling of a file; None if it has none.

    Raises:
        ModelFileError: the number of no pooling.
    """
    if key not in keys:
        return None
    return Pooling(keys.count(key, low=0, high=max(Pooling)))


def read_labels(keys: Keys) -> tuple[str, ...]:
    """Return the names of a classifier's scores; one without a name if the file has none."""
    return keys.texts("classifier.output_labels", ("",))


def tanh(x: Tensor) -> Tensor:
    """Return tanh of x."""
    return ops.unary(x, UnaryOp.TANH)


def classify(g: GraphBuild, x: Tensor, n_labels: int, act: Activation = tanh) -> Tensor:
    """Return the scores [n_labels, n_texts] of pooled rows x [n_embd, n_texts].

    A dense layer may come before the output. Files may lack both.
    """
    n_embd, n_layer = g.hp.n_embd, g.hp.n_layer
    x = dense_layer(g, x, n_embd, act)
    out = g.weight("cls.output.weight", (n_embd, n_labels), n_layer, Op.MUL_MAT, required=False)
    if out is None:
        return x
    return g.add_bias(ops.mul_mat(out, x), "cls.output", n_layer, Bias.OPTIONAL)


def dense_layer(g: GraphBuild, x: Tensor, n_out: int, act: Activation = tanh) -> Tensor:
    """Return act(dense(x)) of x [n_in, n_texts], [n_out, n_texts].

    A norm follows if the file has one. Return x itself if the file lacks the layer.
    """
    n_layer = g.hp.n_layer
    dense = g.weight("cls.weight", (x.ne[0], n_out), n_layer, Op.MUL_MAT, required=False)
    if dense is None:
        return x
    x = act(g.add_bias(ops.mul_mat(dense, x), "cls", n_layer, Bias.OPTIONAL))
    return g.norm(x, "cls.norm", n_layer, optional=True)
