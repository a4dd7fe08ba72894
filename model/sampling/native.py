"""A chain of samplers as kernels of kernels/cpu/sampling, which one native call runs.

Translates the parameters of each step to those of its kernel. Knows no sampling formula.
Tested by tests/model/test_sampling_native.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from ...base.settings import NO_JIT
from ...kernels.cpu import sampling as kernels
from ...kernels.cpu.compiler.jit import Kernel, load_all, want
from ...kernels.cpu.sampling import state
from ...sched.backend import CompileProgress
from ..batch import Mask
from ..outputs import I32Array
from .chain import SamplerStep, invalid_logits, no_token_left
from .dist import MersenneTwister
from .dry import DryPenalty
from .infill import Infill
from .penalties import RepeatPenalties, logit_bias
from .row_table import RowTable, address_of
from .softmax import F32Array, IdArray
from .surprise import AdaptiveP, Mirostat
from .temperature import dynamic_temperature, dynamic_temperature_limits, temperature
from .truncation import least_log, min_p, top_k, top_n_sigma, top_p, typical
from .xtc import Xtc

Params = tuple[int | float, ...]

_N_PARAMS: Final = 6  # words of parameters per step
_FEW_TOKENS: Final = 4096  # any step takes only microseconds for so few candidates
_ALWAYS: Final = (kernels.sample_rows, kernels.sample_sort, kernels.sample_draw)

# the kernel of each pure step, and a function from the step's parameters to the kernel's
_PURE: Final[dict[Callable[..., Any], tuple[Kernel, Callable[..., Params]]]] = {
    top_k: (kernels.sample_top_k, lambda k: (k,)),
    top_p: (kernels.sample_top_p, lambda p, min_keep: (float(p), min_keep)),
    min_p: (kernels.sample_min_p, lambda p, min_keep: (least_log(p), min_keep)),
    typical: (kernels.sample_typical, lambda p, min_keep: (float(p), min_keep)),
    top_n_sigma: (kernels.sample_top_n_sigma, lambda n: (float(n),)),
    temperature: (kernels.sample_temperature, lambda t: (float(t),)),
    dynamic_temperature: (
        kernels.sample_dynamic_temperature,
        lambda t, delta, exponent: (*dynamic_temperature_limits(t, delta), float(exponent)),
    ),
}


def want_kernels() -> None:
    """Let the next compilation of kernels include those of all samplers."""
    if not NO_JIT():
        want(kernels.SAMPLING_KERNELS)


def load_kernels(progress: CompileProgress | None = None) -> None:
    """Compile or load the kernels of all samplers, so that no request waits for them.

    Does nothing with LAMELLA_NO_JIT. Raises BackendError if a kernel cannot be compiled.
    """
    if not NO_JIT():
        load_all(kernels.SAMPLING_KERNELS, progress)


class _NativeStep:
    """A step's kernel and its parameters. Steps with state update them around each call."""

    def __init__(self, kernel: Kernel, params: Params) -> None:
        self.kernel = kernel
        self.params = params

    def before(self, ints: memoryview, at: int) -> None:
        """Write the parameters that change for each token. They begin at word `at`."""

    def after(self, ints: memoryview, at: int) -> None:
        """Read the kernel's results."""


class _Bias(_NativeStep):
    def __init__(self, tokens: IdArray, biases: F32Array) -> None:
        super().__init__(kernels.sample_bias, (len(tokens), address_of(tokens), address_of(biases)))
        self._arrays = tokens, biases  # keeps the memory of the addresses alive


class _Penalties(_NativeStep):
    def __init__(self, step: RepeatPenalties) -> None:
        super().__init__(kernels.sample_penalties, (0, 0, 0, *step.penalties))
        self._step = step

    def before(self, ints: memoryview, at: int) -> None:
        tokens, ints[at] = self._step.tokens.buffer_info()
        ints[at + 1] = tokens
        ints[at + 2] = self._step.counts.buffer_info()[0]


class _Dry(_NativeStep):
    def __init__(self, step: DryPenalty) -> None:
        super().__init__(kernels.sample_bias, (0, 0, 0))
        self._step = step
        self._arrays: tuple[IdArray, F32Array] | None = None  # as in _Bias

    def before(self, ints: memoryview, at: int) -> None:
        tokens, biases = self._arrays = self._step.biases()
        ints[at] = len(tokens)
        ints[at + 1], ints[at + 2] = address_of(tokens), address_of(biases)


class _Xtc(_NativeStep):
    def __init__(self, step: Xtc) -> None:
        super().__init__(
            kernels.sample_xtc, (0.0, step.probability, step.threshold, 0, step.min_keep)
        )
        self._step = step

    def before(self, ints: memoryview, at: int) -> None:
        _as_floats(ints)[at] = self._step.coin.peek_float()
        ints[at + kernels.XTC_USED] = 0

    def after(self, ints: memoryview, at: int) -> None:
        if ints[at + kernels.XTC_USED]:
            self._step.coin.uniform_float()


class _Infill(_NativeStep):
    def __init__(self, step: Infill) -> None:
        texts = step.texts
        arrays: Sequence[npt.NDArray[Any]] = (texts.bytes, texts.ends, texts.ends_text)
        addresses = [address_of(each) for each in arrays]
        super().__init__(kernels.sample_infill, (*addresses, step.end))
        self._arrays = arrays  # as in _Bias


class _Learning(_NativeStep):
    """A step with a state that the kernel `end` writes after the draw."""

    def __init__(self, step: Mirostat | AdaptiveP) -> None:
        self._state = step.state  # as in _Bias
        state = address_of(step.state)
        if isinstance(step, AdaptiveP):
            super().__init__(kernels.sample_adaptive_p, (state, float(step.target)))
            self.end = _NativeStep(kernels.sample_adaptive_p_end, (state, float(step.decay)))
            return
        is_second = step.version == 2
        begin = kernels.sample_mirostat_2 if is_second else kernels.sample_mirostat_1
        super().__init__(begin, (state,))
        numbers = float(step.tau), float(step.eta)
        self.end = _NativeStep(kernels.sample_mirostat_end, (state, *numbers))


def _translated(step: SamplerStep) -> _NativeStep:
    match step:
        case Infill():
            return _Infill(step)
        case Mirostat() | AdaptiveP():
            return _Learning(step)
        case RepeatPenalties():
            return _Penalties(step)
        case DryPenalty():
            return _Dry(step)
        case Xtc():
            return _Xtc(step)
        case partial() if step.func is logit_bias:
            return _Bias(**step.keywords)
        case partial():
            kernel, params = _PURE[step.func]
            return _NativeStep(kernel, params(**step.keywords))
    raise AssertionError(step)


class NativeChain:
    """Runs the steps as kernels, in memory that chains may share.

    Attributes:
        address: the address of its block, see kernels/cpu/sampling/state.py.
        changes: `before` and `after` have an effect.
        is_short: a draw takes only microseconds.
        n_vocab: tokens of the vocabulary.
    """

    def __init__(
        self, steps: Sequence[SamplerStep], n_vocab: int, seed: int, *, draws_for_one: bool = True
    ) -> None:
        """`seed` is that of the random numbers. Without `draws_for_one`, a single candidate takes
        none. Raise BackendError if a kernel cannot be compiled."""
        before = [*map(_translated, steps)]
        after = [native.end for native in before if isinstance(native, _Learning)]
        natives = [*before, _NativeStep(kernels.sample_draw, (int(draws_for_one),)), *after]
        self._kept = natives  # the memory of their addresses
        load_all((*_ALWAYS, *(native.kernel for native in natives)))
        self._block = np.zeros(_words(len(natives)), np.int64)
        self._ints = self._block.data
        self._floats = _as_floats(self._ints)
        self._own: SamplingMemory | None = None  # made when it draws by itself
        self._memory: SamplingMemory | None = None
        self.n_vocab = n_vocab
        self.address = address_of(self._block)
        self._twister = MersenneTwister(seed).state()
        self._twister_address = self._ints[state.TWISTER] = address_of(self._twister)
        self._mask: Mask | None = None
        self._changing: list[tuple[_NativeStep, int]] = []  # steps with state, and their parameters
        self._write_steps(natives)
        self.changes = bool(self._changing)
        n_first = self._ints[state.N_FIRST] = _n_first(steps)
        self.is_short = _is_short(n_first, n_vocab)
        self._table = RowTable(1)

    def draw(
        self,
        logits: F32Array,
        u: float | None = None,
        ids: I32Array | None = None,
        mask: Mask | None = None,
    ) -> int:
        """See Chain."""
        self._ints[state.TWISTER] = self._twister_address if u is None else 0
        if u is not None:
            self._floats[state.U] = u
        self.allow(mask)
        self._own = self._own or SamplingMemory(self.n_vocab)
        self.use(self._own)
        self._table.write(0, self.address, logits, ids)
        self.before()
        (token,) = self._table.run(1, keeps_interpreter=self.is_short)
        self.after()
        if token < 0:
            raise self.error(logits)
        return token

    def use(self, memory: SamplingMemory) -> None:
        """Let later draws write to `memory`. Other chains may draw in it between them."""
        if memory is not self._memory:
            self._memory = memory
            memory.lend(self._block)

    def allow(self, mask: Mask | None) -> None:
        """Let later draws from the whole vocabulary choose among the tokens of `mask`; None: all.
        The mask must live until the next call."""
        if mask is not self._mask:  # an engine uses the same array again
            self._mask, self._ints[state.MASK] = mask, 0 if mask is None else address_of(mask)

    def before(self) -> None:
        """Write the parameters that change for each token. Call it before each draw."""
        for native, at in self._changing:
            native.before(self._ints, at)

    def after(self) -> None:
        """Read the results of steps with state. Call it after each draw."""
        for native, at in self._changing:
            native.after(self._ints, at)

    def follow(self, other: Self) -> None:
        """See Chain."""
        self._twister[:] = other._twister

    def error(self, logits: F32Array) -> Exception:
        """The error of a draw from `logits` that found no token."""
        if self._ints[state.STATUS] == state.BROKEN:
            return invalid_logits(logits)
        return no_token_left(self._mask)

    def last(self) -> tuple[IdArray, F32Array]:
        """See Chain."""
        n, whole = self._ints[state.N], self._ints[state.WHOLE]
        assert n > 0 and self._memory is not None, "nothing was drawn"
        ids = np.arange(n) if whole else self._memory.ids[:n].astype(np.int64)
        return ids, self._memory.weights[:n]

    def _write_steps(self, natives: Sequence[_NativeStep]) -> None:
        ints, floats = self._ints, self._floats
        ints[state.SORT] = kernels.sample_sort.address
        ints[state.N_STEPS] = len(natives)
        at = state.STEPS + state.STEP_WORDS * len(natives)
        for i, native in enumerate(natives):
            entry = state.STEPS + state.STEP_WORDS * i
            ints[entry], ints[entry + 1] = native.kernel.address, self.address + 8 * at
            for j, value in enumerate(native.params):
                if isinstance(value, float):
                    floats[at + j] = value
                else:
                    ints[at + j] = value
            if type(native).before is not _NativeStep.before:
                self._changing.append((native, at))
            at += _N_PARAMS


class SamplingMemory:
    """The arrays that the kernels of a draw write to: 32 bytes for each token of the vocabulary.

    The operating system commits pages on first use. The last draw's candidates are in them; the
    next draw, of any chain, needs nothing of what is there.
    """

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self.logits, self.weights = np.empty(n_vocab, np.float32), np.empty(n_vocab, np.float32)
        self.ids, self._marks = np.empty(n_vocab, np.int32), np.zeros(n_vocab, np.int32)
        self.keys = np.empty(n_vocab, np.int64)
        self._other = np.empty(n_vocab + state.N_COUNTS, np.int64)
        self._maxima = np.empty(state.MAX_GROUPS, np.float32)

    def lend(self, block: npt.NDArray[np.int64]) -> None:
        """Write the addresses to the block of a chain, which must keep the arrays alive."""
        block[state.N_VOCAB] = self.n_vocab
        block[state.OWN], block[state.WEIGHTS] = address_of(self.logits), address_of(self.weights)
        block[state.IDS], block[state.MARKS] = address_of(self.ids), address_of(self._marks)
        block[state.KEYS], block[state.OTHER] = address_of(self.keys), address_of(self._other)
        block[state.MAXIMA] = address_of(self._maxima)


def _words(n_steps: int) -> int:
    return state.STEPS + (state.STEP_WORDS + _N_PARAMS) * n_steps


def _as_floats(ints: memoryview) -> memoryview[float]:
    return ints.cast("B").cast("d")


def _is_short(n_first: int, n_vocab: int) -> bool:
    """True if a call takes only microseconds. `n_first` is from `_n_first`.

    Steps that see all candidates may sort them, which takes milliseconds.
    """
    return n_vocab <= _FEW_TOKENS or 0 < n_first <= _FEW_TOKENS


def _n_first(steps: Sequence[SamplerStep]) -> int:
    """Return k if all steps before top_k only change single logits, else 0."""
    for step in steps:
        if isinstance(step, partial):
            if step.func is top_k:
                return int(step.keywords["k"])
            if step.func is not logit_bias:
                return 0
        elif not isinstance(step, RepeatPenalties | DryPenalty):
            return 0
    return 0
