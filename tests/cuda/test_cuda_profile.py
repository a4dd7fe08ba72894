"""Profiles of a model on a GPU: the same bits, a time for each kernel."""

from __future__ import annotations

from gpus import Gpus
from model_files import ModelFiles
from model_run import opened

from lamella.observe.bench import BenchTest
from lamella.observe.profile import ProfileRun
from lamella.observe.profile_sums import sum_up
from lamella.sched.profile import Profiler


def test_a_profile_of_a_gpu(gpus: Gpus, files: ModelFiles) -> None:
    path = files.random(gpus.pick("0.5b", "small"), "Q4_0")
    test = BenchTest(n_prompt=gpus.pick(40, 5), n_gen=2)
    with opened(path, [gpus.first], n_gpu_layers=2) as context:
        steps = ProfileRun(context, test)
        plain = steps.logits(None)
        for each_call in (False, True):
            timed = steps.logits(Profiler(each_call=each_call))
            assert [a.tobytes() for a in timed] == [a.tobytes() for a in plain]
        records = steps.run()
    for step in records.calls:
        assert {split.device for split in step.splits} == {"CPU", gpus.first.name}
        for split in step.splits:
            times = [split.begin, *(t for c in split.calls for t in (c.begin, c.end)), split.end]
            assert times == sorted(times)
    for sums in sum_up(records):
        kinds = {kind.kind: kind for kind in sums.kinds if kind.device == gpus.first.name}
        product = next(kind for name, kind in kinds.items() if name.startswith("MUL_MAT Q4_0"))
        assert product.gflops > 0
        assert product.gb_per_s > 0
