"""OpenTelemetry traces: a span for each request, and spans for the parts of each of its texts.

`--otel` enables them. All else comes from OpenTelemetry's own environment variables. Its packages
are optional and slow to import, so they are imported when the server starts with the flag.
Attributes have the names of OpenTelemetry's semantic conventions for HTTP and for generative AI
(opentelemetry.io/docs/specs/semconv). Knows no route and no engine.
Tested by tests/server/test_otel.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ..base.background import begin
from ..base.errors import RequestError
from ..base.log import get_logger
from ..base.settings import environment

if TYPE_CHECKING:  # options need no request
    from .request_record import RequestRecord

log = get_logger("server")

LIBRARY_LOG: Final = logging.getLogger("opentelemetry")

INSTALL: Final = "pip install 'lamella[otel]'"
PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
N_END_SECONDS: Final = 1.0  # to export the last spans when the server stops
N_TEXTS_MAX: Final = 64  # of a request that have spans; the exporter's queue has 2,048 places
PARTS: Final = ("queue", "prompt", "decode")  # between the times of a text
METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
)
# variables with the values that are supported, the default first
SUPPORTED: Final = {
    "OTEL_TRACES_EXPORTER": ("otlp", "none"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ("http/protobuf",),
}


def checked_otel(name: str, value: object) -> bool:
    """True if requests are traced.

    Raises:
        RequestError: OpenTelemetry is not installed, or one of its variables is not supported.
    """
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be a boolean, found {value!r}")
    if not value or (environment("OTEL_SDK_DISABLED") or "").strip().lower() == "true":
        return False
    for variable, allowed in SUPPORTED.items():
        given = environment(variable) or allowed[0]
        if given not in allowed:
            raise RequestError(f"{variable} is {given!r}: must be {' or '.join(allowed)}")
    if environment("OTEL_TRACES_EXPORTER") == "none":
        return False
    for package in PACKAGES:
        if not _is_installed(package):
            raise RequestError(f"{name} needs OpenTelemetry: {INSTALL}")
    return True


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


class Traces:
    """Makes spans of ended requests, and exports them on a thread of its own.

    Without a place in its queue, or without a collector, spans are lost; no request waits.

    Raises:
        RequestError: one of OpenTelemetry's variables is invalid.
    """

    def __init__(self) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - optional and slow
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        self._api = trace
        try:
            own = {"service.name": "lamella", "service.version": version("lamella")}
            resource = Resource.create(own | dict(OTELResourceDetector().detect().attributes))
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except (ValueError, RuntimeError, OSError) as error:
            raise RequestError(f"--otel: a variable of OpenTelemetry is invalid: {error}") from None
        self._tracer = self._provider.get_tracer("lamella", version("lamella"))
        self._propagator = TraceContextTextMapPropagator()
        self._log = _LogHandler()
        LIBRARY_LOG.addHandler(self._log)

    def add(self, record: RequestRecord, route: str, headers: Mapping[str, str]) -> None:
        """Trace an ended request. Its parent is the span that `headers` name, if they do."""
        epoch = time.time() - time.perf_counter()
        method = record.method if record.method in METHODS else "_OTHER"
        span = self._tracer.start_span(
            f"{method} {route}" if route else method,
            context=self._propagator.extract(headers),
            kind=self._api.SpanKind.SERVER,
            attributes=dict(_attributes(record, method, route)),
            start_time=_ns(epoch + record.t_start),
        )
        if span.is_recording():
            if _is_error(record):
                text = record.reason or record.kind
                span.set_status(self._api.Status(self._api.StatusCode.ERROR, text))
            self._add_texts(span, record, epoch)
        span.end(_ns(epoch + record.t_start + record.seconds))

    def _add_texts(self, span: Any, record: RequestRecord, epoch: float) -> None:
        """Add the parts of each text that has one."""
        parent = self._api.set_span_in_context(span)
        t_end = record.t_start + record.seconds
        for choice in record.choices[:N_TEXTS_MAX]:
            if choice.ticket is None:
                continue
            times = choice.ticket.times
            for name, (t_begin, t_next) in zip(PARTS, pairwise(times), strict=True):
                if t_begin:  # else the text ended before this part
                    part = self._tracer.start_span(
                        name,
                        context=parent,
                        attributes={"lamella.text": choice.index},
                        start_time=_ns(epoch + t_begin),
                    )
                    part.end(_ns(epoch + (t_next or t_end)))

    def close(self) -> None:
        """Export the spans that are left, for at most a second."""
        wait([begin(self._provider.shutdown, "lamella-otel")], N_END_SECONDS)
        LIBRARY_LOG.removeHandler(self._log)


class _LogHandler(logging.Handler):
    """Logs OpenTelemetry's warnings as ours, without tracebacks, so that their number is limited.

    They come from one place here, whichever place of the library they are of.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        log.warning("OpenTelemetry: %s", record.getMessage())


def _attributes(record: RequestRecord, method: str, route: str) -> Iterator[tuple[str, Any]]:
    yield "http.request.method", method
    if method != record.method:
        yield "http.request.method_original", record.method
    yield "url.path", record.path
    yield "http.response.status_code", record.status
    yield "lamella.request_id", record.id
    if route:
        yield "http.route", route
    if record.key:
        yield "lamella.key", record.key
    if record.kind != "ok":
        yield "error.type", record.kind
    if record.choices:
        reasons = [each.finish_reason for each in record.choices if each.result is not None]
        yield "gen_ai.usage.input_tokens", record.n_prompt
        yield "gen_ai.usage.cache_read.input_tokens", record.n_cached
        yield "gen_ai.usage.output_tokens", record.n_predicted
        yield "gen_ai.response.finish_reasons", reasons
    elif record.n_texts:
        yield "gen_ai.usage.input_tokens", record.n_text_tokens


def _is_error(record: RequestRecord) -> bool:
    """True if the server failed: neither the client's error nor its leaving is one."""
    return record.kind not in ("ok", "disconnected") and not 400 <= record.status < 500


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
