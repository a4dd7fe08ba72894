"""The engine's decisions: admission, preemption, the content of a step, the end of a job.

Pure functions over plain state: no clock, no thread, no memory. `runner.py` carries them out.
Tested by tests/runtime/test_policy.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from ...model.kv_prefix import PrefixIdentity
from ..params import GenerationParams
from .job import StopType
from .shares import Owner, split


class JobState(Protocol):
    """The state of a job that decisions need: see `Ticket`."""

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt and the tokens predicted so far."""

    @property
    def n_done(self) -> int:
        """Number of evaluated tokens. Not updated while the job is decoding."""

    @property
    def decoding(self) -> bool:
        """True if all tokens but the last are evaluated."""

    @property
    def settled(self) -> bool:
        """True if the job has ended: finished, failed or cancelled."""

    @property
    def paused(self) -> bool:
        """True if the job gets no tokens for now. Its prompt is evaluated nevertheless."""

    @property
    def owner(self) -> Owner:
        """The client and the request that the job is for."""

    @property
    def identity(self) -> PrefixIdentity:
        """Jobs share prefixes only with those of the same identity."""

    @property
    def marks(self) -> Collection[int] | None:
        """The lengths of its prompt that others can share; None: all full pages."""

    @property
    def params(self) -> GenerationParams:
        """How the job runs."""


class TicketState(JobState, Protocol):
    """Also what decides how far a job goes."""

    @property
    def n_most(self) -> int:
        """Number of tokens at which a limit ends the job."""

    @property
    def sent_left(self) -> Sequence[int]:
        """Tokens that another engine has sampled for it, and that it has not got yet."""


State = TypeVar("State", bound=JobState)

MIN_SHIFTED: Final = 4  # tokens that a shift does not keep, as in llama-server


# --- admission ---


def must_wait(
    job: JobState, n_shared: int, fits: bool, running: Sequence[JobState], page_size: int
) -> bool:
    """True if the job whose turn it is does not start in this step.

    It waits until the pool has pages for its whole prompt, so that no prompt stops half-way. It
    also waits for a shared prefix that a running job is evaluating. It never waits if no job is
    running.

    Args:
        job: the waiting job.
        n_shared: number of its tokens that the pool already holds.
        fits: True if the pool has pages for its other tokens and one more.
        running: the running jobs.
        page_size: tokens per page.
    """
    return bool(running) and (not fits or prefix_is_coming(job, n_shared, running, page_size))


def prefix_is_coming(
    job: JobState, n_shared: int, running: Iterable[JobState], page_size: int
) -> bool:
    """True if a running job has yet to evaluate more of this job's prefix: its next full page, or
    a mark if layers keep states.

    Waiting costs less than to evaluate it twice. Meanwhile others take their turns.
    """
    if not job.params.cache_prompt:
        return False
    n_next = (n_shared // page_size + 1) * page_size
    for other in running:
        if other.decoding or not other.params.cache_prompt or other.identity != job.identity:
            continue
        lengths = (
            n
            for n in ((n_next,) if other.marks is None else other.marks)
            if n_shared < n < len(job.tokens)
            and other.n_done < -(-n // page_size) * page_size <= len(other.tokens)
        )
        n = min(lengths, default=0)  # longer ones are common only if this one is
        if n and other.tokens[:n] == job.tokens[:n]:
            return True
    return False


def shared_length(n_shared: int, fits: bool, page_size: int) -> int:
    """The number of shared tokens that a job uses: all if the pool then has enough pages, else
    those of full pages. A partly shared page costs one more page, for its copy."""
    return n_shared if fits else n_shared - n_shared % page_size


# --- preemption ---


def victim(running: Sequence[State]) -> State:
    """The job to preempt when the pool is full: the youngest paused one, else the youngest of the
    client with the most jobs. `running` is ordered by age, oldest first.

    It is the oldest of all only if no other runs.
    """
    return paused_victim(running) or _youngest_of_most(running)


def paused_victim(running: Sequence[State]) -> State | None:
    """The youngest paused job; None if none is paused."""
    return next((job for job in reversed(running) if job.paused), None)


def leaves_for(job: JobState, running: Sequence[State]) -> State | None:
    """The running job that leaves if a waiting one needs its place or its pages: a paused one, or
    one of a client that runs at least two more than the other; None if there is none.

    Requests of one client follow the same rule.
    """
    own = [other for other in running if _client(other) == _client(job)]
    if (paused := paused_victim(running)) is not None:
        return paused
    if _n_most(running, _client) >= len(own) + 2:
        return _youngest_of_most(running)
    if _n_most(own, _owner) >= sum(other.owner == job.owner for other in own) + 2:
        return _youngest_of_most(own)
    return None


def _youngest_of_most(running: Sequence[State]) -> State:
    """The youngest job of the client with the most, and of its request with the most."""
    found = running
    for of in (_client, _owner):
        counts = Counter(map(of, found))
        found = [job for job in found if counts[of(job)] == max(counts.values())]
    return found[-1]


def _n_most(running: Sequence[JobState], of: Callable[[JobState], Hashable]) -> int:
    return max(Counter(map(of, running)).values(), default=0)


def _client(job: JobState) -> str:
    return job.owner.client


def _owner(job: JobState) -> Owner:
    return job.owner


def has_work(running: Iterable[JobState]) -> bool:
    """True if the next step has tokens: not all jobs are paused."""
    return any(not (job.paused and job.decoding) for job in running)


# --- a step ---


def decoding(running: Iterable[State]) -> list[State]:
    """The jobs that get one token in this step, oldest first."""
    return [job for job in running if job.decoding and not job.paused]


def goes_on(job: TicketState) -> bool:
    """True if a job will get a token after its next one, but for what that token ends."""
    is_open = job.decoding and not job.paused and not job.settled
    return is_open and len(job.tokens) + 1 < job.n_most and not job.sent_left


def may_guess(running: Iterable[JobState]) -> bool:
    """True if guesses delay no prompt: none is evaluated in this step."""
    return all(job.decoding or job.settled for job in running)


def prompt_chunks(running: Iterable[State], budget: int) -> list[tuple[State, int]]:
    """The jobs whose prompts are evaluated in this step, oldest first, each with a token count:
    `budget` tokens together, see `Pace.n_prompt_tokens`.

    Clients share the budget, and requests of a client its part. A request's oldest job goes first.
    """
    # a settled job may have no pages
    jobs = [job for job in running if not job.decoding and not job.settled]
    given = dict.fromkeys(map(id, jobs), 0)
    for client, n_client in _shared(budget, jobs, _client):
        for request, n_request in _shared(n_client, client, _owner):
            n = n_request
            for job in request:
                given[id(job)] = min(n, _n_left(job))
                n -= given[id(job)]
    return [(job, given[id(job)]) for job in jobs if given[id(job)] > 0]


def _shared(
    budget: int, jobs: Iterable[State], of: Callable[[JobState], Hashable]
) -> list[tuple[list[State], int]]:
    """The jobs of each owner, with its part of a budget."""
    groups: dict[Hashable, list[State]] = {}
    for job in jobs:
        groups.setdefault(of(job), []).append(job)
    wanted = [sum(map(_n_left, group)) for group in groups.values()]
    return list(zip(groups.values(), split(budget, wanted), strict=True))


def _n_left(job: JobState) -> int:
    return len(job.tokens) - job.n_done


def wants_output(job: JobState, end: int) -> bool:
    """True if a token is sampled after the first `end` tokens: at the end of the prompt, unless the
    job requests no tokens."""
    return end == len(job.tokens) and job.params.n_predict != 0


# --- ends ---


def is_late(t_max_ms: float, elapsed_ms: float, has_new_line: bool) -> bool:
    """True if the time limit ends a job. As in llama-server, it applies only after a new line."""
    return has_new_line and 0 < t_max_ms <= elapsed_ms


def limit_of(
    n_predicted: int, n_predict: int, n_tokens: int, n_ctx: int, late: bool
) -> tuple[StopType | None, bool]:
    """The limit that ends a job after its last token (or None), and True if the context is full.

    Args:
        n_predicted: tokens predicted so far.
        n_predict: the most tokens to predict; -1: no limit.
        n_tokens: tokens of prompt and prediction.
        n_ctx: tokens that fit into the context.
        late: True if the time limit is reached, see `is_late`.
    """
    if n_predicted == n_predict or late:
        return StopType.LIMIT, False
    if n_tokens >= n_ctx:
        return StopType.LIMIT, True
    return None, False


def n_predict_of(params: GenerationParams, n_ctx: int) -> int:
    """The most tokens that a job predicts; -1: no limit but the context."""
    if params.context_shift and params.n_predict < 0:
        return n_ctx
    return params.n_predict


def shifted(
    tokens: Sequence[int], n_prompt: int, params: GenerationParams, bos: int | None
) -> list[int]:
    """The tokens that a job goes on with when the context is full.

    As in llama-server, `n_keep` tokens stay at the begin, and `n_discard` or half of the others
    leave after them. At least one stays, and one leaves, after the kept ones.

    Args:
        tokens: those of the prompt and the predicted ones.
        n_prompt: tokens of the first prompt. At most these are kept.
        params: `n_keep` and `n_discard`.
        bos: the token that begins a text. If it does, it is kept beyond `n_keep`.
    """
    n_keep = n_prompt if params.n_keep < 0 else params.n_keep + (tokens[0] == bos)
    n_keep = min(n_keep, n_prompt, len(tokens) - MIN_SHIFTED)
    n_rest = len(tokens) - n_keep
    n_discard = min(params.n_discard or n_rest // 2, n_rest - 1)
    return [*tokens[:n_keep], *tokens[n_keep + n_discard :]]
