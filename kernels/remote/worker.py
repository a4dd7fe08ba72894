"""The worker: a process that lends its device to one driver.

    worker = Worker(device, secret)
    address = worker.listen("0.0.0.0")
    worker.wait()          # until the driver closes its control connection

A thread answers the requests of the control connection. The reactor reads all others. Knows no Ray.
Tested by tests/kernels/test_remote_device.py.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import count
from typing import Any, Final

import numpy as np

from ...alloc.buffer import Buffer, BufferType, FilePart, Usage, tensor_get, tensor_set
from ...alloc.host import DTYPES
from ...alloc.memory import NullBuffer
from ...base.background import begin
from ...base.errors import DeviceLostError
from ...base.log import get_logger
from ...graph.graph import Graph
from ...graph.tensor import Tensor
from ...graph.types import GGMLType
from ...sched.backend import Device
from ..reference.arrays import to_f32
from .failures import error_json
from .files import FileIdentity, OwnCopies, read_parts
from .graphs import BufferReference, Json, decode_graph
from .peers import Mailbox, PeerLink
from .pulse import answer
from .reactor import Reactor
from .stream import Stream
from .wire import Address, Channel, Kind, Message, Role, accept, connect, to_json

log = get_logger("remote")

TAKEN: Final = "its process serves another driver"
MAX_HANDSHAKES: Final = 256  # at once; a stranger can begin one, and take 10 s
END_SECONDS: Final = 5.0  # most time for work that goes on when the driver is gone
RETRY_SECONDS: Final = 0.1  # before connections are accepted again, after an error


class Worker:
    """Lends a device to the driver that knows the secret.

    Attributes:
        buffers: those that the driver has allocated, by number.
    """

    def __init__(self, device: Device, secret: bytes) -> None:
        self.device = device
        self.bufts = [device.buffer_type, *device.extra_buffer_types]
        self.buffers: dict[int, Buffer] = {}
        self.mailbox = Mailbox()
        self.peers: list[Channel] = []
        self._reactor = Reactor("lamella-reactor")
        self._streams: list[Stream] = []
        self._secret = secret
        self._ids = count(1)
        self._own = OwnCopies()
        self._channels: list[Channel] = []
        self._server: socket.socket | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._handshakes = threading.Semaphore(MAX_HANDSHAKES)
        self._has_driver = False

    # --- connections ---

    def listen(self, host: str) -> Address:
        """Accept connections at any free port of `host`; return the address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family)
        threading.Thread(target=self._accept, name="lamella-accept", daemon=True).start()
        port: int = self._server.getsockname()[1]
        return host, port

    def wait(self) -> None:
        """Wait until the driver has closed its control connection, and free everything."""
        self._ended.wait()
        self.close()

    def close(self) -> None:
        """End all connections, and free all buffers. May be called again."""
        self._ended.set()
        if self._server is not None:
            with suppress(OSError):  # not connected, on some systems
                self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._server.close()
        for channel in self._channels:  # first: no request shall find freed memory
            channel.close()
        self._reactor.close()
        for channel in self.peers:
            channel.close()
        for stream in self._streams:
            stream.ended.wait(END_SECONDS)  # its work uses the buffers
        for number in list(self.buffers):
            self._free(number)

    def _free(self, number: int) -> None:
        """Free a buffer, if there is one. The driver gets no reply, so an error is only logged."""
        buffer = self.buffers.pop(number, None)
        try:
            if buffer is not None:
                buffer.free()
        except Exception as e:  # of a device that has failed, for example
            log.warning(f"{self.device.name}: memory was not freed: {type(e).__name__}: {e}")

    def _accept(self) -> None:
        assert self._server is not None
        while not self._ended.is_set():
            self._handshakes.acquire()
            try:
                sock, (host, port, *_) = self._server.accept()
                begin(partial(self._shake, sock, f"{host}:{port}"), "lamella-serve")
            except (OSError, RuntimeError) as e:  # closed, or out of descriptors or threads
                self._handshakes.release()
                if not self._ended.wait(RETRY_SECONDS):
                    log.warning(f"a connection was not accepted: {e}")

    def _shake(self, sock: socket.socket, name: str) -> None:
        try:
            channel = accept(sock, self._secret, name)
        except (OSError, ValueError) as e:
            log.warning(f"a connection from {name} was refused: {e}")
            sock.close()
            return
        finally:
            self._handshakes.release()
        try:
            self._serve(channel)
        except Exception as e:  # no memory for a stream, for example
            log.error(f"a connection from {name} is closed: {type(e).__name__}: {e}")
            channel.close()

    def _serve(self, channel: Channel) -> None:
        if channel.role is Role.PEER:
            self._reactor.add(channel, PeerLink(self.mailbox))
        elif channel.role is Role.STREAM:
            stream = Stream(self, channel)
            with self._lock:
                self._streams = [s for s in self._streams if not s.ended.is_set()]
                self._streams.append(stream)
            self._reactor.add(channel, stream)
        elif channel.role is Role.PULSE:
            self._channels.append(channel)
            with suppress(DeviceLostError):
                answer(channel)
            channel.close()
        else:
            self._control(channel)

    def _control(self, channel: Channel) -> None:
        """Answer the requests of the driver, until it is gone. There is one: others are refused."""
        with self._lock:
            is_first, self._has_driver = not self._has_driver, True
        if not is_first:
            with suppress(DeviceLostError):
                channel.receive()
                channel.send(Kind.ERROR, data=error_json(DeviceLostError(TAKEN)))
            channel.close()
            return
        self._channels.append(channel)
        try:
            self._answer_all(channel)
        except DeviceLostError as e:
            log.debug(f"{e}")
        finally:
            channel.close()
            self._ended.set()

    # --- requests ---

    def _answer_all(self, channel: Channel) -> None:
        """Answer requests until the connection ends, which raises DeviceLostError."""
        while True:
            message = channel.receive()
            try:
                self._answer(message, channel)
            except DeviceLostError as e:
                if channel.is_closed:
                    raise
                channel.send(Kind.ERROR, data=error_json(e))  # that of another worker
            except Exception as e:  # whatever is wrong with a request must not end the worker
                channel.send(Kind.ERROR, data=error_json(e))

    def _answer(self, message: Message, channel: Channel) -> None:
        a, b, size, value, _ = message.numbers
        match message.kind:
            case Kind.CALL:
                self._call(message.json(), channel)
            case Kind.FREE:
                self._free(a)
            case Kind.READ:
                found = tensor_get(self.bytes_at(a, b, size))
                channel.send(Kind.DATA, data=found)
            case Kind.WRITE:
                data = np.frombuffer(message.data, np.uint8)
                tensor_set(self.bytes_at(a, b, data.size), data)
                channel.send(Kind.RESULT)
            case Kind.FILL:
                tensor = self.bytes_at(a, b, size)
                tensor.buffer.memset_tensor(tensor, value)
                channel.send(Kind.RESULT)
            case Kind.SET:
                head = Message(Kind.CALL, message.numbers, message.data[:a]).json()
                tensor_set(self._tensor(**head), message.data[a:])
                channel.send(Kind.RESULT)
            case Kind.ECHO:
                channel.send(Kind.RESULT)
            case _:
                raise ValueError(f"unknown request {message.kind}")

    def _call(self, call: Json, channel: Channel) -> None:
        if call["method"] == "get":
            channel.send(Kind.DATA, data=tensor_get(self._tensor(**call["arguments"])))
            return
        method = _METHODS[call["method"]]
        arguments = call["arguments"]
        result = method(self, arguments) if method in _OF_GRAPHS else method(self, **arguments)
        channel.send(Kind.RESULT, data=to_json(result))

    def info(self) -> Json:
        device = self.device
        return {
            "version": version("lamella"),
            "type": device.type.value,
            "description": device.description,
            "few_tokens": device.few_tokens,
            "kernels_by_size": device.kernels_by_size,
            "driver_margin": device.driver_margin,
            "caveats": dict(device.caveats),
            "buffer_types": [self._describe(buft) for buft in self.bufts],
            "backend_memory": [
                (self.bufts.index(buft), size)
                for buft, size in device.backend_memory
                if buft in self.bufts  # the others are memory of this machine's host
            ],
        }

    def _describe(self, buft: BufferType) -> Json:
        return {
            "suffix": buft.name.removeprefix(self.device.name),
            "alignment": buft.alignment,
            "max_size": buft.max_size,
            "is_packed": bool(getattr(buft, "is_packed", False)),
            "has_plain_sizes": type(buft).get_alloc_size is BufferType.get_alloc_size,
        }

    def memory(self) -> tuple[int, int]:
        return self.device.memory()

    def bandwidth(self) -> float | None:
        return self.device.bandwidth(getattr(self.device, "n_threads", 1))

    def report(self) -> Any:
        report = self.device.report()
        return dict(report.facts), list(report.lines)

    def alloc(self, buft: int, size: int) -> int:
        buffer = self.bufts[buft].alloc_buffer(size)
        buffer.usage = Usage.WEIGHTS  # kernels do not look at it
        id = next(self._ids)
        self.buffers[id] = buffer
        return id

    def alloc_size(self, buft: int, type: str, ne: list[int]) -> int:
        return self.bufts[buft].get_alloc_size(Tensor(GGMLType[type], ne))

    def load(self, *, file_type: str, parts: list[list[Any]], **place: Any) -> None:
        """Read a tensor from this machine's copy of the file."""
        tensor, found = self._tensor(**place), []
        for path, n_bytes, ends, offset, n in parts:
            own = self._own.of(FileIdentity(path, n_bytes, ends))
            found.append(FilePart(own, offset, n))
        if GGMLType[file_type] is tensor.type:
            tensor.buffer.fill_tensor(tensor, lambda begin, end: read_parts(found, begin, end))
            return
        raw = read_parts(found, 0, sum(part.n_bytes for part in found))
        type = GGMLType[file_type]
        tensor_set(tensor, to_f32(type, raw.view(DTYPES.get(type, np.uint8))))

    def connect(self, to: list[Any], link: int, name: str) -> int:
        """Connect to another worker, which will know this one by `name`; return the connection's
        number here."""
        host, port = to
        channel = connect((host, port), self._secret, Role.PEER, f"{host}:{port}")
        channel.send(Kind.LINK, link, data=name.encode())
        self.peers.append(channel)
        return len(self.peers) - 1

    def cut(self, link: int, name: str) -> None:
        """Nothing more comes from another worker."""
        self.mailbox.lose(link, f"{name}, which sends its input, is gone")

    # --- graphs ---

    def supports(self, graph: Json) -> bool:
        return all(self.device.supports_op(node) for node in self.decode(graph)[0].nodes)

    def optimize(self, sent: Json) -> Any:
        graph, tensors = self.decode(sent)
        index = {tensor: i for i, tensor in enumerate(tensors)}
        keep = self.device.graph_optimize(graph)
        order = [index[node] for node in graph.nodes]
        return order, [(index[k.tensor], index[k.until]) for k in keep]

    def work_size(self, graph: Json) -> int:
        return self.device.work_size(self.decode(graph)[0])

    def decode(self, sent: Json) -> tuple[Graph, list[Tensor]]:
        """The graph that a driver sent, and its tensors."""
        return decode_graph(sent, self._buffer_of)

    # --- memory ---

    def _buffer_of(self, reference: BufferReference) -> Buffer:
        if reference.id > 0:
            return self.buffers[reference.id]
        buft = self.bufts[reference.buft]
        return NullBuffer(buft, reference.size) if reference.size else buft.alloc_buffer(0)

    def bytes_at(self, buffer: int, offset: int, size: int) -> Tensor:
        """`size` bytes of a buffer as a tensor."""
        return _placed(self.buffers[buffer], offset, Tensor(GGMLType.I8, (size,)))

    def _tensor(self, buffer: int, offset: int, type: str, ne: list[int], name: str) -> Tensor:
        return _placed(self.buffers[buffer], offset, Tensor(GGMLType[type], ne, name=name))


_METHODS: Final = {
    method.__name__: method
    for method in (
        *(Worker.info, Worker.memory, Worker.bandwidth, Worker.report),
        *(Worker.alloc, Worker.alloc_size, Worker.load, Worker.connect, Worker.cut),
        *(Worker.supports, Worker.optimize, Worker.work_size),
    )
}
_OF_GRAPHS: Final = (Worker.supports, Worker.optimize, Worker.work_size)


def _placed(buffer: Buffer, offset: int, tensor: Tensor) -> Tensor:
    size = buffer.buft.get_alloc_size(tensor)
    if offset < 0 or offset + size > buffer.size:
        raise ValueError(f"bytes {offset}..{offset + size} are outside a buffer of {buffer.size}")
    tensor.buffer, tensor.offset = buffer, offset
    return tensor
