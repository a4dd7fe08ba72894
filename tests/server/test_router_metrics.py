"""The metrics of several models in one text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from lamella.server.router.metrics import merged

ONE = """\
# HELP llamacpp:n_decode_total Steps
# TYPE llamacpp:n_decode_total counter
llamacpp:n_decode_total 7.0
# HELP x_seconds Seconds
# TYPE x_seconds histogram
x_seconds_bucket{le="0.1"} 1.0
x_seconds_bucket{le="+Inf"} 2.0
x_seconds_count 2.0
x_seconds_sum 0.5
"""
OWN = """\
# HELP x_seconds Seconds
# TYPE x_seconds histogram
x_seconds_bucket{le="+Inf"} 3.0
x_seconds_count 3.0
x_seconds_sum 1.0
"""


def test_each_family_is_there_once_and_samples_have_the_model() -> None:
    texts = {"a": ONE, 'b "\\': ONE, "c": ""}
    parts = [({"model": name}, text) for name, text in texts.items()]
    text = "".join(merged([({}, OWN), *parts]))
    assert text.count("# TYPE") == text.count("# HELP") == 2
    found = {family.name: family for family in text_string_to_metric_families(text)}
    decode = found["llamacpp:n_decode"]
    assert [(s.labels, s.value) for s in decode.samples] == [
        ({"model": "a"}, 7.0),
        ({"model": 'b "\\'}, 7.0),
    ]
    counts = [s for s in found["x_seconds"].samples if s.name == "x_seconds_count"]
    assert [(s.labels.get("model"), s.value) for s in counts] == [
        (None, 3.0),
        ("a", 2.0),
        ('b "\\', 2.0),
    ]
