"""Measures a model's speed: prompts, decoding one sequence, decoding several sequences together.

    tests = [BenchTest(n_prompt=512), BenchTest(n_gen=128)]
    with open_bench(params, tests) as bench:
        seconds = bench.run(tests[0])

The tests are those of llama-bench: random tokens, no vocabulary, no sampling. Sequences have the
model's LoRA adapters. Knows no flags and no tables. Runs each test once per call.
Tested by tests/observe/test_bench_model.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ..base.errors import RequestError
from ..model.batch import Batch
from ..model.card import ModelCard, model_card
from ..model.context import Context
from ..model.kv_pages import PAGE_SIZE
from ..model.kv_sequence import KVSequence
from ..runtime.open import opened
from ..runtime.params import OpenParams


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTest:
    """A test: evaluate a prompt of `n_prompt` tokens, then generate `n_gen` tokens one by one.

    `n_seq` sequences run in parallel. Each has `n_depth` tokens before the measurement starts.

    Raises:
        RequestError: an invalid number.
    """

    n_prompt: int = 0
    n_gen: int = 0
    n_seq: int = 1
    n_depth: int = 0

    def __post_init__(self) -> None:
        for name, low in (("n_prompt", 0), ("n_gen", 0), ("n_seq", 1), ("n_depth", 0)):
            if getattr(self, name) < low:
                raise RequestError(f"{name} is {getattr(self, name)}: must be at least {low}")
        if self.n_tokens == 0:
            raise RequestError("a test has neither a prompt nor tokens to generate")

    @property
    def name(self) -> str:
        """llama-bench's name of the test, and the number of sequences if above 1."""
        parts = [f"pp{self.n_prompt}"] if self.n_prompt else []
        parts += [f"tg{self.n_gen}"] if self.n_gen else []
        depth = f" @ d{self.n_depth}" if self.n_depth else ""
        return "+".join(parts) + depth + (f" x {self.n_seq}" if self.n_seq > 1 else "")

    @property
    def n_tokens(self) -> int:
        """Number of timed tokens, of all sequences."""
        return self.n_seq * (self.n_prompt + self.n_gen)

    @property
    def n_cells(self) -> int:
        """Number of cells of the KV pool that the test needs: whole pages for each sequence.

        Each run has a copy of the last page of the depth, if it is not full.
        """
        n_whole, end = self.n_depth // PAGE_SIZE, self.n_depth + self.n_prompt + self.n_gen
        n_pages = -(-self.n_depth // PAGE_SIZE) + -(-end // PAGE_SIZE) - n_whole
        return self.n_seq * n_pages * PAGE_SIZE


def rate_ceiling(
    card: ModelCard, test: BenchTest, bytes_per_s: float, mul_adds_per_s: float, n_ubatch: int
) -> float:
    """An estimate of the most tokens per second on a machine of these speeds.

    A step takes the time to read or the time to multiply, whichever is longer. It reads the weights
    once per `n_ubatch` tokens, and earlier keys and values once. The output matrix is multiplied
    with the last token of each sequence only. The products of attention do not count. Of experts,
    only those of one token count.
    """
    each = card.n_mul_adds - card.n_mul_adds_output

    def seconds(n_tokens: int, n_before: float, n_steps: int = 1) -> float:
        n_reads = -(-n_tokens // n_ubatch)
        n_bytes_kv = sum(layer.n_bytes(n_before) for layer in card.kv_reads)
        read = n_reads * card.n_bytes_read + test.n_seq * n_bytes_kv
        n_mul_adds = n_tokens * each + test.n_seq * card.n_mul_adds_output
        return n_steps * max(read / bytes_per_s, n_mul_adds / mul_adds_per_s)

    total = 0.0
    if test.n_prompt:
        total += seconds(test.n_seq * test.n_prompt, test.n_depth)
    if test.n_gen:
        # on average, half of the generated tokens precede a step
        before = test.n_depth + test.n_prompt + (test.n_gen - 1) / 2
        total += seconds(test.n_seq, before, test.n_gen)
    return test.n_tokens / total


class Bench:
    """Runs tests on a context. `bench_params` makes the context large enough.

    Sequences filled to a test's depth are kept for the next runs of tests of this depth.
    """

    def __init__(self, context: Context, seed: int = 0) -> None:
        self.context = context
        self._lora_scales = context.model.adapters.initial_scales
        self._rng = np.random.default_rng(seed)
        self._filled: list[KVSequence] = []

    def run(self, test: BenchTest) -> float:
        """Run a test once. Return its seconds; filling the context to its depth is not timed."""
        seqs = self._sequences(test)
        try:
            lengths = [test.n_prompt] * bool(test.n_prompt) + [1] * test.n_gen
            steps = [self._draw(test.n_seq, n) for n in lengths]  # drawn before the measurement
            begin = perf_counter()
            for tokens in steps:
                self._step(seqs, tokens)
            return perf_counter() - begin
        finally:
            for seq in seqs:
                seq.free()

    def _sequences(self, test: BenchTest) -> list[KVSequence]:
        """New sequences of the test's depth."""
        pool, n_depth = self.context.pool, test.n_depth
        if n_depth == 0:
            return [pool.new_sequence() for _ in range(test.n_seq)]
        if [seq.length for seq in self._filled] != [n_depth] * test.n_seq:
            self.forget()
            self._filled = [pool.new_sequence() for _ in range(test.n_seq)]
            self._step(self._filled, self._draw(test.n_seq, n_depth))
        seqs = [seq.fork() for seq in self._filled]
        for seq in seqs:  # copy the shared last page now, not in a timed step
            self.context.append(seq, 1)
            seq.truncate(n_depth)
        return seqs

    def forget(self) -> None:
        """Free the sequences that are kept."""
        for seq in self._filled:
            seq.free()
        self._filled = []

    def _draw(self, n_seq: int, n: int) -> list[list[int]]:
        """`n` random tokens of each sequence."""
        tokens: list[list[int]] = self._rng.integers(0, self.context.n_vocab, (n_seq, n)).tolist()
        return tokens

    def _step(self, seqs: Sequence[KVSequence], tokens: list[list[int]]) -> None:
        """Decode tokens of each sequence, with logits for the last token of each."""
        batch = Batch()
        for seq, row in zip(seqs, tokens, strict=True):
            pos = seq.length
            self.context.append(seq, len(row))
            batch.add(row, seq, pos, n_outputs=1, lora_scales=self._lora_scales)
        self.context.decode(batch)

    def card(self) -> ModelCard:
        """The costs of the model."""
        return model_card(self.context)


def bench_params(params: OpenParams, tests: Sequence[BenchTest]) -> OpenParams:
    """`params` with a context that is large enough for each of the tests."""
    n_seqs = (test.n_seq * (2 if test.n_depth else 1) for test in tests)
    return params.change(n_ctx=max(test.n_cells for test in tests), n_parallel=max(n_seqs))


@contextmanager
def open_bench(params: OpenParams, tests: Sequence[BenchTest]) -> Iterator[Bench]:
    """A loaded model, ready to run the tests. Errors: see `runtime.open.opened`."""
    with opened(bench_params(params, tests)) as context:
        yield Bench(context)
