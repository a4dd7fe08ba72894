"""The options of all tests, their order, and their environment.

With several test processes, each collects only the files that it runs (`FileTests`). On a real
GPU, each collects all tests of the few files there.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

# also in the processes that tests start; tests that feed NaN on purpose use STRICT.set(0)
os.environ.setdefault("LAMELLA_STRICT", "1")

# one of several test processes has one processor: threads by default would wait for each other
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("LAMELLA_ARG_THREADS", "1")  # processes that tests start
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's, which spin between products
    _set = pytest.MonkeyPatch().setattr
    _set("lamella.runtime.devices.default_threads", lambda: 1)
    _set("lamella.kernels.cpu.compiler.worker_pool.usable_cpus", lambda: 1)  # no more processes

# a script's background jobs ignore Ctrl-C, and so would these tests and the processes they start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the files that take longest, the longest first: with several processes none must come last
SLOWEST: Final = (
    "tests/cluster/test_ray.py",
    "tests/kernels/test_cpu_isa.py",
    "tests/kernels/test_ops.py",
    "tests/cuda/test_cuda_models.py",
    "tests/kernels/test_cuda_compile.py",
    "tests/kernels/test_cuda_attention.py",
    "tests/kernels/test_ray_nodes.py",
    "tests/kernels/test_attention.py",
    "tests/kernels/test_cuda_quantized.py",
    "tests/cuda/test_cuda_offload.py",
    "tests/kernels/test_cpu_packed.py",
    "tests/kernels/test_attention_spans.py",
    "tests/cuda/test_cuda_memory.py",
    "tests/server/test_page_browser.py",
    "tests/server/test_http_process.py",
    "tests/cli/test_serve.py",
    "tests/runtime/test_fit.py",
    "tests/cli/test_plan.py",
    "tests/runtime/test_plan_exact.py",
    "tests/model/test_remote_pipeline.py",
    "tests/cuda/test_cuda_planning.py",
    "tests/cli/test_serve_models.py",
    "tests/observe/test_explain_page.py",
)


CPU: Final = "processor time"  # a property of reports, in seconds
_CPU_BEFORE: Final = [0.0]  # at the end of the last test, or of the collection
QUICK: Final = 0.005  # seconds; shorter setups and teardowns that pass are not reported


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cuda",
        action="store_true",
        help="run tests/cuda on this machine's NVIDIA GPUs, at real sizes, not on an emulated one",
    )
    parser.addoption(
        "--full",
        action="store_true",
        help="also run the tests marked `full`: further cases of large matrices",
    )
    parser.addoption(
        "--slowest-files",
        type=int,
        default=0,
        metavar="N",
        help="print the N test files that took longest, with their processor time",
    )


def pytest_configure(config: pytest.Config) -> None:
    # an emulated GPU is slow; the test of this feature sets NO_WARM_UP.set(0)
    if not config.getoption("--cuda"):
        os.environ.setdefault("LAMELLA_NO_WARM_UP", "1")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    files = [item for item in items if isinstance(item, FileTests)]
    if not files:
        order_and_choose(config, items)
    yield
    if files:  # -k and other options choose among their tests later
        items[:] = in_order(files)


def in_order(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    rank = {file: i for i, file in enumerate(SLOWEST)}
    return sorted(items, key=lambda item: rank.get(file_of(item.nodeid), len(rank)))


def order_and_choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    _CPU_BEFORE[0] = processor_time()
    items[:] = in_order(items)
    if config.getoption("--full"):
        return
    full = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=full)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


# --- several processes ---


class LateFile(pytest.File):
    """A test file that is one item until its turn comes."""

    def collect(self) -> Iterator[FileTests]:
        tests = FileTests.from_parent(self, name="tests")
        tests.add_marker(pytest.mark.timeout(0))  # each test has its own
        yield tests


class FileTests(pytest.Item):
    """The tests of a file. The process that runs them collects them.

    If every process collected all files, that would take minutes of processor time.
    """

    next_file: pytest.Item | None = None

    def runtest(self) -> None:
        items, config = self.session.items, self.config
        place, n_files = items.index(self), len(items)
        assert self.parent is not None
        module = pytest.Module.from_parent(self.parent.parent, path=self.path)
        tests = list(self.session.genitems(module))
        config.hook.pytest_collection_modifyitems(session=self.session, config=config, items=tests)
        if not tests:  # else the last one tears down what the next file does not need
            self.session._setupstate.teardown_exact(self.next_file)
        items += tests  # as in a single process, for tests that look there
        for i, test in enumerate(tests):
            items[place] = test  # xdist expects reports of the test that has this place
            following = tests[i + 1] if i + 1 < len(tests) else self.next_file
            config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if self.session.shouldfail or self.session.shouldstop:
                break
        items[place] = self
        del items[n_files:]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    config = parent.config
    if config.getoption("--cuda"):
        return None  # one file has most tests
    if hasattr(config, "workerinput") and not any("::" in name for name in config.args):
        return LateFile.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    if isinstance(item, FileTests):
        item.next_file = nextitem
        item.runtest()
        return True
    several = hasattr(item.config, "workerinput")
    if not several:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    with same_log_after():
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in worth_reporting(reports):
        item.ihook.pytest_runtest_logreport(report=report)
    if not several:
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@contextmanager
def same_log_after() -> Iterator[None]:
    """A test that sets up the log, as each command does, leaves nothing of it to later tests."""
    root = logging.getLogger("lamella")
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def worth_reporting(reports: Sequence[pytest.TestReport]) -> list[pytest.TestReport]:
    """The reports of a test, the last with its processor time. A report takes a millisecond to
    reach the first process."""
    chosen = [r for r in reports if r.when == "call" or not r.passed or r.duration > QUICK]
    before, _CPU_BEFORE[0] = _CPU_BEFORE[0], processor_time()
    for report in chosen[-1:]:
        report.user_properties.append((CPU, _CPU_BEFORE[0] - before))
    return chosen


class Progress:
    """The share of the files that have begun, as nobody knows how many tests there are."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._n_files, self._n_tests = 0, 0
        self._begun: set[str] = set()

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._n_files = len({file_of(nodeid) for nodeid in ids})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._n_tests += report.when == "call"
        self._begun.add(file_of(report.nodeid))
        self._session.testscollected = self._n_tests * self._n_files // len(self._begun)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and not self._begun:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("numprocesses", None):
        session.config.pluginmanager.register(Progress(session))


# ---


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seconds: defaultdict[str, float] = defaultdict(float)
    cpu: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[file_of(report.nodeid)] += report.duration
                cpu[file_of(report.nodeid)] += sum(
                    float(str(value)) for name, value in report.user_properties if name == CPU
                )
    if n := config.getoption("--slowest-files"):
        terminalreporter.section(f"slowest {n} test files (processor time)")
        for file, duration in sorted(seconds.items(), key=lambda item: -item[1])[:n]:
            terminalreporter.line(f"{duration:6.1f} s ({cpu[file]:6.1f} s)  {file}")


def processor_time() -> float:
    """Seconds of this process and of its children that ended."""
    return sum(os.times()[:4])


def file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]
