"""Models from a URL: downloads are resumed, sizes are checked, other files are refused."""

from __future__ import annotations

import gzip
import re
import shutil
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import FakeHub
from hub_world import hub_world

from lamella.base.errors import DownloadError
from lamella.model.hub import blobs, headers, urls
from lamella.model.hub.names import cache_name
from lamella.model.hub.urls import find_url, find_url_header

NAME = "some/model-Q4_0.gguf"
DATA = b"GGUF" + np.random.default_rng(0).bytes(300_000)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_world(tmp_path, monkeypatch) as made:
        made.add("a/b", {NAME: DATA})
        yield made


def url(hub: FakeHub, name: str = NAME) -> str:
    return f"{hub.url('files')}/{name}"


def refusal(address: str, **options: Any) -> str:
    with pytest.raises(DownloadError) as raised:
        find_url(address, **options)
    return str(raised.value)


def files_in(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.rglob("*") if path.is_file() and path.parent.name != ".locks"
    )


def test_a_file_is_downloaded_once(hub: FakeHub, tmp_path: Path) -> None:
    progress: list[tuple[int, int, str]] = []
    path = find_url(url(hub), on_progress=lambda *what: progress.append(what))
    assert path.read_bytes() == DATA
    host = hub.url("files").partition("://")[2].replace(":", "_")
    assert path == tmp_path / "lamella" / "downloads" / host / NAME
    assert (progress[0], progress[-1]) == (
        (0, len(DATA), "model-Q4_0.gguf"),
        (len(DATA), len(DATA), "model-Q4_0.gguf"),
    )
    assert files_in(tmp_path / "lamella") == ["model-Q4_0.gguf"]
    hub.forget()
    assert find_url(url(hub), offline=True) == path
    assert find_url(f"{url(hub)}?download=true") == path
    assert hub.requests == []


def test_the_token_of_the_hub_is_not_sent(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    find_url(url(hub))
    assert {r.token for r in hub.requests} == {""}


def test_all_files_of_a_split_model(hub: FakeHub) -> None:
    parts = {f"m-0000{no}-of-00002.gguf": b"GGUF" + bytes(5000 * no) for no in (1, 2)}
    hub.add("a/b", parts)
    path = find_url(url(hub, "m-00001-of-00002.gguf"))
    assert path.name == "m-00001-of-00002.gguf"
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == parts


@pytest.mark.parametrize("name", ["get?file=a.gguf", "get?file=b.gguf", "get"])
def test_the_query_is_a_part_of_a_name_without_suffix(hub: FakeHub, name: str) -> None:
    hub.add("a/b", {"get": DATA})
    path = find_url(url(hub, name))
    assert path.read_bytes() == DATA
    assert path.suffix == ".gguf"
    assert (path.name == "get.gguf") is (name == "get")


@pytest.mark.parametrize("text", ["../../x.gguf", "%2e%2e/%2e%2e/x.gguf", "a/..%2f..%2fx.gguf"])
def test_no_url_leads_out_of_the_cache(hub: FakeHub, tmp_path: Path, text: str) -> None:
    path = urls._path(f"{hub.url('files')}/{text}")
    assert path.resolve().is_relative_to((tmp_path / "lamella" / "downloads").resolve())
    assert path.suffix == ".gguf" and ".." not in path.parts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("q%20q.gguf", "q_q.gguf"), ("f.gguf?v=1", "f.gguf?v=2"), ("f.gguf?v=1", "f.gguf")),
        *(("a%2Fb.gguf", "a/b.gguf"), ("%fe.gguf", "%ff.gguf"), ("a/../f.gguf", "f.gguf")),
        ("a.gguf?versionId=1", "a.gguf?versionId=2"),
        (f"{'a' * 151}.gguf", f"{'a' * 152}.gguf"),
    ],
)
def test_two_files_never_share_a_name(one: str, other: str) -> None:
    names = {cache_name(f"https://h/{text}") for text in (one, other)}
    assert len(names) == 2
    assert all(re.fullmatch(r"h/(a/)?[\w.-]{1,170}\.gguf", name, re.ASCII) for name in names)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("HTTPS://User:secret@H:80/a/f.gguf", "h_80/a/f.gguf"),
        ("https://h/a%2Eb.gguf?download=true", "h/a.b.gguf"),
        ("https://h/f.gguf?X-Amz-Date=1&X-Amz-Signature=2", "h/f.gguf"),
        ("https://h/f.gguf?sv=1&sig=2", "h/f.gguf"),
        ("https://h/f", "h/f.gguf"),
        ("https://h", "h.gguf"),
    ],
)
def test_names_in_the_cache(url: str, name: str) -> None:
    assert cache_name(url) == name


def test_files_of_a_split_model_share_a_digest() -> None:
    names = [cache_name(f"https://h/q%20q-0000{no}-of-00002.gguf?v=1") for no in (1, 2)]
    assert re.fullmatch(r"h/q_q-[0-9a-f]{8}-00001-of-00002\.gguf", names[0])
    assert names[1] == names[0].replace("00001", "00002")


def test_two_processes_download_once(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.stall_after = urls.HEAD_BYTES
    paths: list[Path] = []
    both = [threading.Thread(target=lambda: paths.append(find_url(url(hub)))) for _ in range(2)]
    for one in both:
        one.start()
    while "waiting for another process" not in caplog.text:
        assert any(one.is_alive() for one in both)
    hub.go_on.set()
    for one in both:
        one.join()
    assert [path.read_bytes() == DATA for path in paths] == [True, True]
    assert [r.range for r in hub.deliveries()].count("") == 1


def test_a_file_longer_than_announced(hub: FakeHub, tmp_path: Path) -> None:
    shown = urls._look(url(hub))
    hub.add("a/b", {NAME: DATA + b"more"})
    with pytest.raises(DownloadError, match=r"was removed: the server sent more than 292\.97 KiB"):
        urls._download([shown], None)
    assert files_in(tmp_path / "lamella") == []


# --- interruptions ---


def test_an_interrupted_download_is_resumed(hub: FakeHub) -> None:
    hub.cuts = [4096, 100_000, 1, 0, 50_000]  # the first request looks at the file
    assert find_url(url(hub)).read_bytes() == DATA
    ranges = [r.range.partition("-")[0] for r in hub.deliveries()]
    assert ranges == ["bytes=0", "", "bytes=100000", "bytes=100001", "bytes=100001", "bytes=150001"]


def test_a_later_run_resumes_an_unchanged_file(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [4096, 100_000, *[0] * blobs.TRIES]
    assert "cannot be reached: peer closed connection" in refusal(url(hub))
    (name,) = files_in(tmp_path / "lamella")
    assert name.startswith("model-Q4_0.gguf.") and name.endswith(".incomplete")
    hub.cuts = []
    hub.forget()
    assert find_url(url(hub)).read_bytes() == DATA
    assert hub.n_sent == 4096 + len(DATA) - 100_000


def test_a_changed_file_is_downloaded_from_the_beginning(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [4096, 100_000, *[0] * blobs.TRIES]
    refusal(url(hub))
    hub.cuts = []
    new = b"GGUF" + bytes(len(DATA) - 4)  # of the same size
    hub.add("a/b", {NAME: new})
    assert find_url(url(hub)).read_bytes() == new
    assert files_in(tmp_path / "lamella") == ["model-Q4_0.gguf"]


def test_a_server_without_ranges(hub: FakeHub) -> None:
    hub.knows_ranges = False
    hub.cuts = [len(DATA), 100_000]
    assert find_url(url(hub)).read_bytes() == DATA


# --- refusals ---


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<!DOCTYPE html><html>Log in</html>", "is not a GGUF file: this is an HTML page"),
        (b"PK\x03\x04" + bytes(9000), "is not a GGUF file: this is a zip archive"),
        ((90).to_bytes(8, "little") + b"{" + bytes(9000), "this is a safetensors file"),
    ],
)
def test_other_files_are_refused(
    hub: FakeHub, tmp_path: Path, content: bytes, message: str
) -> None:
    hub.add("a/b", {NAME: content})
    assert message in refusal(url(hub))
    assert files_in(tmp_path / "lamella") == []
    assert hub.n_sent <= urls.HEAD_BYTES


def test_errors_of_the_server(hub: FakeHub) -> None:
    assert refusal(url(hub, "x.gguf")) == (
        f"{hub.url('files')[7:]} has no such file: {url(hub, 'x.gguf')} (status 404)"
    )
    hub.statuses = [403]
    assert refusal(url(hub)).endswith(f" refuses {url(hub)} (status 403): busy")
    hub.statuses = [500]
    assert "has a server error, try again later (status 500)" in refusal(url(hub))


@pytest.mark.parametrize("status", [403, 500])
def test_an_error_whose_body_is_a_gzip_bomb(hub: FakeHub, status: int) -> None:
    hub.statuses = [status] * 3
    hub.error, hub.error_headers = gzip.compress(bytes(64 << 20)), {"Content-Encoding": "gzip"}
    tracemalloc.start()
    try:
        assert f"(status {status})" in refusal(url(hub))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_offline_mode(hub: FakeHub) -> None:
    assert refusal(url(hub), offline=True).startswith("offline mode; the cache ")
    assert hub.requests == []


def test_a_small_disk_is_an_error_before_the_download(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 1000))
    text = refusal(url(hub))
    assert "model-Q4_0.gguf needs 292.97 KiB more in" in text and "--cache-dir" in text
    assert hub.n_sent == urls.HEAD_BYTES


# --- headers ---


def test_a_header_needs_few_bytes(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "HEADER_STEP", 1000)
    (tmp_path / "headers").mkdir()
    path = find_url_header(url(hub), tmp_path / "headers")
    assert path == tmp_path / "headers" / "model-Q4_0.gguf"
    assert path.stat().st_size == hub.n_sent - urls.HEAD_BYTES == 1000  # no header: it gives up
    assert DATA.startswith(path.read_bytes())
    assert files_in(tmp_path / "lamella") == []
    whole = find_url(url(hub))
    assert find_url_header(url(hub), tmp_path / "headers") == whole
