"""Models from the hub: downloads are resumed and checked, the cache works without a network, and
errors name their remedies."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import GOOD_TOKEN, FakeHub, digest_of
from hub_world import hub_world
from huggingface_hub import constants, try_to_load_from_cache
from tiny_models import TINY, write_model

from lamella.base.errors import DownloadError, ModelFileError
from lamella.model.gguf import open_gguf
from lamella.model.hub import blobs, find_model, headers, library, parse_model
from lamella.model.hub.headers import find_header

REPO = "some/Model-GGUF"
NAME = "model-Q4_K_M.gguf"


def noise(n: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(n)


DATA = noise(300_000)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_world(tmp_path, monkeypatch) as made:
        made.add(REPO, {"README.md": b"# Model", NAME: DATA, "model-Q8_0.gguf": noise(9000)})
        yield made


def found(text: str = REPO, **options: Any) -> Path:
    return find_model(parse_model(text), **options)


def refusal(text: str = REPO, **options: Any) -> str:
    with pytest.raises(DownloadError) as raised:
        found(text, **options)
    return str(raised.value)


def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models--some--Model-GGUF"


def partial(tmp_path: Path, data: bytes = DATA) -> Path:
    return cache(tmp_path) / "blobs" / f"{digest_of(data)}.incomplete"


# --- downloading ---


def test_a_model_is_downloaded_once(hub: FakeHub, tmp_path: Path) -> None:
    progress: list[tuple[int, int, str]] = []
    path = found(on_progress=lambda *what: progress.append(what))
    assert path.read_bytes() == DATA
    assert path.name == NAME
    assert (progress[0], progress[-1]) == ((0, len(DATA), NAME), (len(DATA), len(DATA), NAME))
    assert [done for done, _, _ in progress] == sorted(done for done, _, _ in progress)
    hub.forget()
    again: list[Any] = []
    assert found(on_progress=lambda *what: again.append(what)) == path
    assert [r.path for r in hub.requests] == [f"/api/models/{REPO}"]  # only the listing
    assert again == []


def test_the_library_finds_a_downloaded_model(hub: FakeHub, tmp_path: Path) -> None:
    path = found()
    assert try_to_load_from_cache(REPO, NAME) == str(path)
    assert path.resolve() == cache(tmp_path) / "blobs" / digest_of(DATA)
    assert (cache(tmp_path) / "refs" / "main").read_text() == hub.repos[REPO].commit
    left = [p.name for p in cache(tmp_path).rglob("*") if "incomplete" in p.name]
    assert left == []


def test_files_downloaded_by_the_library_are_used(hub: FakeHub) -> None:
    from huggingface_hub import hf_hub_download  # noqa: PLC0415

    path = hf_hub_download(REPO, NAME)
    hub.forget()
    assert str(found()) == path
    assert hub.n_sent == 0


def test_all_files_of_a_split_model(hub: FakeHub) -> None:
    parts = {f"Q8_0/m-0000{no}-of-00003.gguf": noise(3000 * no, no) for no in (1, 2, 3)}
    hub.add(REPO, parts)
    progress: list[tuple[int, int, str]] = []
    path = found(f"{REPO}:q8_0", on_progress=lambda *what: progress.append(what))
    assert {f"Q8_0/{p.name}": p.read_bytes() for p in path.parent.iterdir()} == parts
    assert path.name == "m-00001-of-00003.gguf"
    assert progress[-1] == (18_000, 18_000, "Q8_0/m-00001-of-00003.gguf")


def test_a_small_file_stored_in_git(hub: FakeHub) -> None:
    hub.add(REPO, {"tiny.gguf": b"GGUF" + bytes(100)})
    assert found().read_bytes() == b"GGUF" + bytes(100)
    hub.add("a/b", {"tiny.gguf": b"GGUF" + bytes(99)})
    hub.damage = True
    assert "was damaged in the download" in refusal("a/b")


def test_another_quant_is_used_with_a_warning(
    hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add(REPO, {"model-Q8_0.gguf": DATA})
    assert found().name == "model-Q8_0.gguf"
    assert "has no Q4_K_M: using model-Q8_0.gguf" in caplog.text


def test_a_new_version_is_downloaded(hub: FakeHub) -> None:
    old = found()
    hub.add(REPO, {NAME: noise(5000, 1)})
    new = found()
    assert new.read_bytes() == noise(5000, 1)
    assert old.read_bytes() == DATA
    assert found(offline=True) == new


def test_a_new_version_with_the_same_file_needs_no_download(hub: FakeHub) -> None:
    found()
    hub.forget()
    hub.add(REPO, {NAME: DATA, "README.md": b"# New"})
    progress: list[Any] = []
    assert found(on_progress=lambda *what: progress.append(what)).read_bytes() == DATA
    assert (hub.n_sent, progress) == (0, [])


def test_a_cache_without_links(hub: FakeHub) -> None:
    path = found()
    shutil.move(path.resolve(), path)  # as the library does on systems without links
    hub.forget()
    assert found() == path
    assert hub.n_sent == 0
    assert path.read_bytes() == DATA


# --- interrupted downloads ---


def test_an_interrupted_download_is_resumed(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.cuts = [100_000, 1, 0, 50_000]
    assert found().read_bytes() == DATA
    last = f"-{len(DATA) - 1}"
    begins = ["", "bytes=100000", "bytes=100001", "bytes=100001", "bytes=150001"]
    assert [r.range.removesuffix(last) for r in hub.deliveries()] == begins
    assert hub.n_sent == len(DATA)


def test_a_hub_that_is_busy_for_a_while(hub: FakeHub) -> None:
    hub.statuses = [503, 200, 502, 200, 504, 429]
    assert found().read_bytes() == DATA


def test_a_failed_download_keeps_its_partial_file(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [100_000, *[0] * blobs.TRIES]
    assert "cannot be reached: peer closed connection" in refusal()
    assert partial(tmp_path).read_bytes() == DATA[:100_000]
    hub.cuts = []
    hub.forget()
    assert found().read_bytes() == DATA
    assert hub.n_sent == len(DATA) - 100_000


@pytest.mark.parametrize("extra", [b"", b"more than there is"])
def test_a_complete_partial_file_is_checked(hub: FakeHub, tmp_path: Path, extra: bytes) -> None:
    partial(tmp_path).parent.mkdir(parents=True)
    partial(tmp_path).write_bytes(DATA + extra)
    assert found().read_bytes() == DATA
    assert hub.n_sent == (len(DATA) if extra else 0)


def test_a_server_without_ranges_restarts_the_download(hub: FakeHub) -> None:
    hub.knows_ranges = False
    hub.cuts = [100_000]
    assert found().read_bytes() == DATA
    assert hub.n_sent == len(DATA) + 100_000


def test_files_larger_than_one_response(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "RESPONSE_MAX", 100_000)
    assert found().read_bytes() == DATA
    ranges = ["bytes=0-99999", "bytes=100000-199999", "bytes=200000-299999"]
    assert [r.range for r in hub.deliveries()] == ranges


def test_two_processes_download_once(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.stall_after = 1000
    paths: list[Path] = []
    both = [threading.Thread(target=lambda: paths.append(found())) for _ in range(2)]
    for one in both:
        one.start()
    while "waiting for another process" not in caplog.text:
        assert any(one.is_alive() for one in both)
    hub.go_on.set()
    for one in both:
        one.join()
    assert [path.read_bytes() == DATA for path in paths] == [True, True]
    assert len(hub.deliveries()) == 1


# --- damage ---


def test_a_damaged_download_is_found(hub: FakeHub, tmp_path: Path) -> None:
    hub.damage = True
    text = refusal()
    assert f"{NAME} of {REPO} was damaged in the download and removed" in text
    assert digest_of(DATA) in text
    assert list((cache(tmp_path) / "blobs").iterdir()) == []
    hub.damage = False
    assert found().read_bytes() == DATA


def test_a_damaged_partial_file_is_found(hub: FakeHub, tmp_path: Path) -> None:
    partial(tmp_path).parent.mkdir(parents=True)
    partial(tmp_path).write_bytes(bytes(1000))
    assert "was damaged in the download" in refusal()
    assert found().read_bytes() == DATA


def test_a_cached_file_of_another_size_is_downloaded_again(
    hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    path = found()
    path.resolve().write_bytes(DATA[:1000])
    assert found().read_bytes() == DATA
    assert "was removed: its size is not that of" in caplog.text


@pytest.mark.parametrize("name", ["../../x", "", "0" * 39])
def test_names_outside_the_cache_are_refused(
    hub: FakeHub, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO].commit = name
    assert f"sent an invalid response: {name!r} is not a digest" in refusal()
    hub.add(REPO, {"../m-Q4_K_M.gguf": DATA, "a/../../m-Q4_K_M.gguf": DATA})
    assert "has no GGUF model" in refusal()


def test_an_invalid_response_of_the_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fake_hub._listing", lambda repo: b"<html>Please log in</html>")
    assert "sent an invalid response" in refusal()
    monkeypatch.setattr("fake_hub._listing", lambda repo: b"[]")
    assert "sent an invalid response" in refusal()


# --- without the hub ---


def test_offline_mode_sends_no_requests(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = found()
    hub.forget()
    assert found(offline=True) == found(f"{REPO}:q4_k_m", offline=True) == path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert found() == path
    assert refusal("no/body") == (
        f"offline mode: HF_HUB_OFFLINE is set; the cache {constants.HF_HUB_CACHE} has "
        "no model of no/body"
    )
    assert refusal(f"{REPO}:Q8_0", offline=True) == (
        f"offline mode; the cache of {REPO} has no Q8_0; available: Q4_K_M (292.97 KiB)"
    )
    assert hub.requests == []


def test_offline_mode_uses_the_newest_of_each_quant(hub: FakeHub) -> None:
    first = found()
    hub.add(REPO, {NAME: noise(5000, 1), "model-Q8_0.gguf": DATA})
    second = found(f"{REPO}:Q8_0")
    assert first.parent != second.parent
    assert found(offline=True) == first
    assert found(f"{REPO}:Q8_0", offline=True) == second
    found()  # downloads it from the second version as well
    assert found(offline=True).parent == second.parent
    (second.parents[2] / "refs" / "main").write_text(first.parent.name)
    assert found(offline=True) == first


def test_offline_mode_ignores_incomplete_models(hub: FakeHub) -> None:
    hub.add(REPO, {f"m-Q8_0-0000{no}-of-00002.gguf": noise(3000, no) for no in (1, 2)})
    path = found(f"{REPO}:Q8_0")
    path.with_name("m-Q8_0-00002-of-00002.gguf").unlink()
    assert "has no model of" in refusal(f"{REPO}:Q8_0", offline=True)


def test_no_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = found()
    with socket.socket() as closed:  # never listens
        closed.bind(("127.0.0.1", 0))
        place = "{}:{}".format(*closed.getsockname())
        monkeypatch.setattr(constants, "ENDPOINT", f"http://{place}")
        assert found() == path
        assert f"{place} cannot be reached" in caplog.text
        assert f"using {NAME} from the cache" in caplog.text
        text = refusal("some/other")
    assert text.startswith(f"{place} cannot be reached: ")
    assert text.endswith(f"; the cache {constants.HF_HUB_CACHE} has no model of some/other")


def test_server_errors_of_the_hub(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.statuses = [500] * library.TRIES
    assert "has a server error, try again later (status 500)" in refusal()
    path = found()
    hub.statuses = [503] * library.TRIES
    assert found() == path
    assert "from the cache" in caplog.text
    hub.statuses = [429] * library.TRIES
    assert "too many requests" in refusal("some/other")


# --- refusals ---


def test_no_such_repository(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal("no/body")
    assert "has no repository no/body, or it is private and needs a token (HF_TOKEN)" in text
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert "or it is private and your token cannot read it" in refusal("no/body")


def test_a_private_repository(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO].private = True
    assert "or it is private" in refusal()
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert found().read_bytes() == DATA
    # the token is not sent to the file servers, which are third parties
    assert {(r.host, r.token) for r in hub.requests[-3:]} == {("hub", GOOD_TOKEN), ("files", "")}


def test_a_gated_repository(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO].gated = True
    text = refusal()
    assert f"{REPO} is gated: request access at {hub.url()}/{REPO}" in text
    assert "then set HF_TOKEN to a token of your account" in text
    assert len([r for r in hub.requests if "/resolve/" in r.path]) == 1  # no retry
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    hub.has_access = False
    assert "the account of your token has no access yet" in refusal()
    hub.has_access = True
    assert found().read_bytes() == DATA


def test_a_wrong_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    assert "rejects the token (HF_TOKEN, or that of `hf auth login`)" in refusal()


def test_no_such_quant(hub: FakeHub) -> None:
    assert refusal(f"{REPO}:Q3_K_S") == (
        f"{REPO} has no Q3_K_S; available: Q4_K_M (292.97 KiB), Q8_0 (8.79 KiB)"
    )
    assert hub.deliveries() == []


def test_download_errors_are_model_file_errors(hub: FakeHub) -> None:
    with pytest.raises(ModelFileError):
        found("no/body")


# --- the disk ---


def test_a_small_disk_is_an_error_before_the_download(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 200_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, free))
    text = refusal()
    assert f"{NAME} of {REPO} needs 292.97 KiB more in {tmp_path / 'cache'}" in text
    assert "195.31 KiB are free" in text
    assert "HF_HUB_CACHE" in text
    assert hub.deliveries() == []
    partial(tmp_path).parent.mkdir(parents=True)
    partial(tmp_path).write_bytes(DATA[:200_000])
    assert found().read_bytes() == DATA  # only the rest needs space


def test_a_disk_that_becomes_full_during_the_download(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = blobs._Download._count

    def full(self: Any, chunk: bytes) -> None:
        count(self, chunk)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(blobs._Download, "_count", full)
        text = refusal()
    assert f"the disk of {cache(tmp_path) / 'blobs'} is full" in text
    assert "repeat the command to resume the download" in text
    there = partial(tmp_path).stat().st_size
    assert 0 < there < len(DATA)
    assert found().read_bytes() == DATA
    assert hub.deliveries()[-1].range == f"bytes={there}-{len(DATA) - 1}"


def test_a_cache_that_is_not_a_folder(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert f"{REPO} cannot be written into" in refusal()


# --- headers ---


@pytest.fixture
def model(hub: FakeHub, tmp_path: Path) -> bytes:
    """A real, small model with much data after its header."""
    path = tmp_path / "tiny.gguf"
    write_model(TINY["llama"], path)
    data = path.read_bytes() + bytes(4 << 20)
    hub.add(REPO, {NAME: data})
    return data


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_header_needs_few_bytes(
    hub: FakeHub, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_ranges: bool
) -> None:
    monkeypatch.setattr(headers, "HEADER_STEP", 1000)
    hub.knows_ranges = knows_ranges
    (tmp_path / "headers").mkdir()
    path = find_header(parse_model(REPO), tmp_path / "headers")
    size = path.stat().st_size
    assert path.name == NAME and path.read_bytes() == model[:size]
    with open_gguf(path, header_only=True) as file:
        assert file.metadata.str("general.architecture") == "llama"
    assert 1000 < size < 100_000
    if knows_ranges:
        assert hub.n_sent == size
    assert not (tmp_path / "cache").exists()


def test_headers_of_a_split_model(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: bytes
) -> None:
    names = [f"Q8_0/m-Q8_0-0000{no}-of-00002.gguf" for no in (1, 2)]
    hub.add(REPO, dict.fromkeys(names, model))
    folder = tmp_path / "headers"
    folder.mkdir()
    path = find_header(parse_model(f"{REPO}:Q8_0"), folder)
    assert [p.name for p in sorted(folder.iterdir())] == [n.split("/")[1] for n in names]
    assert path == min(folder.iterdir())


def test_the_header_of_an_invalid_file_has_a_limit(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "HEADER_STEP", 1000)
    monkeypatch.setattr(headers, "HEADER_MAX", 10_000)
    path = find_header(parse_model(REPO), tmp_path)
    assert path.stat().st_size == 16_000


def test_the_header_of_a_cached_model(hub: FakeHub, model: bytes, tmp_path: Path) -> None:
    path = found()
    hub.forget()
    assert find_header(parse_model(REPO), tmp_path) == path
    assert find_header(parse_model(REPO), tmp_path, offline=True) == path
    assert hub.deliveries() == []


def test_a_header_of_a_gated_repository(hub: FakeHub, model: bytes, tmp_path: Path) -> None:
    hub.repos[REPO].gated = True
    with pytest.raises(DownloadError, match="is gated"):
        find_header(parse_model(REPO), tmp_path)
