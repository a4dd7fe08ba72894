"""From the name of a model to its file: all forms of names, and errors that name the forms."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import GOOD_TOKEN, FakeHub
from hub_world import hub_world
from tiny_models import TINY, write_model

from lamella.base.errors import DownloadError, ModelFileError, RequestError
from lamella.model.find import SEARCH, find_file, read_name
from lamella.model.gguf import open_gguf
from lamella.model.hub import FORMS, HubModel, headers, is_hub
from lamella.model.shipped import shipped_model

REPO = "some/Model-GGUF"
NAME = "model-Q4_K_M.gguf"
OTHER = "sub/model-Q8_0.gguf"
DATA = b"GGUF" + bytes(9000)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with hub_world(tmp_path, monkeypatch) as made:
        made.add(REPO, {NAME: DATA, OTHER: DATA[:-1]})
        yield made


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(ModelFileError) as raised:
        find_file(name, **options)
    return str(raised.value)


# --- names ---


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("u/r", HubModel("u/r")),
        ("u/r:Q8_0", HubModel("u/r", "Q8_0")),
        ("hf.co/u/r:Q8_0", HubModel("u/r", "Q8_0")),
        ("huggingface.co/u/r", HubModel("u/r")),
        ("hf://u/r:Q8_0", HubModel("u/r", "Q8_0")),
        ("https://huggingface.co/u/r", HubModel("u/r")),
        ("https://hf.co/u/r:Q8_0", HubModel("u/r", "Q8_0")),
        ("https://huggingface.co/u/r/tree/main", HubModel("u/r")),
        ("https://huggingface.co/u/r/resolve/main/a/b.gguf", HubModel("u/r", "", "a/b.gguf")),
        (
            "https://huggingface.co/u/r/blob/main/b%20c.gguf?download=true",
            HubModel("u/r", "", "b c.gguf"),
        ),
        (
            "https://huggingface.co/u/r/tree/main/sub",
            HubModel("u/r"),
        ),
        ("https://a.b/c//d.gguf?e=f", "https://a.b/c//d.gguf?e=f"),
        ("HTTP://a.b/d", "HTTP://a.b/d"),
    ],
)
def test_forms_of_names(hub: FakeHub, text: str, source: object) -> None:
    assert read_name(text) == source
    assert hub.requests == []


@pytest.mark.parametrize("host", ["https://huggingface.co", "http://HF.co", "hf.co"])
def test_another_version_is_a_url_of_the_endpoint(hub: FakeHub, host: str) -> None:
    """A token would be sent in clear text to an http URL of the hub."""
    assert read_name(f"{host}/u/r/blob/v2/b.gguf") == f"{hub.url()}/u/r/resolve/v2/b.gguf"
    assert read_name(f"{host}/blob/r/blob/v2/b.gguf") == f"{hub.url()}/blob/r/resolve/v2/b.gguf"
    assert is_hub(f"{hub.url()}/u/r")
    assert not is_hub(f"{hub.url().replace('http:', 'https:')}/u/r")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        *((text, "") for text in ("nowhere.gguf", "./u/r", "a/b/c", "u/r.gguf", "/u/r", "~/r", "")),
        ("llama3.2:1b", f". Repositories with this name: {SEARCH}llama3.2"),
        ("Why is the sky blue?", ". A prompt comes after the model, or after -p"),
    ],
)
def test_names_without_a_model(hub: FakeHub, text: str, end: str) -> None:
    message = refusal(text)
    path = os.path.expanduser(os.path.normpath(text)) if "/" in text else repr(text)
    assert message.startswith(f"{text if text.endswith('.gguf') else path}: no ")
    assert message.endswith(f"; {FORMS}{end}")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://a.b/c.gguf", "ftp://a.b/c.gguf: Lamella downloads by http and https only; "),
        ("https:///c.gguf", "https:///c.gguf: Lamella downloads by http and https only; "),
        ("https://huggingface.co/u", "https://huggingface.co/u is no model: "),
        ("https://[x/y.gguf", "'https://[x/y.gguf' is no URL: Invalid IPv6 URL; "),
    ],
)
def test_urls_without_a_model(hub: FakeHub, text: str, message: str) -> None:
    assert refusal(text) == message + FORMS


@pytest.mark.parametrize(
    "text",
    [
        *("http://h:abc/x.gguf", "http://h:99999/x.gguf", "http://h/x\n.gguf", "https://.."),
        *("http://h/\udcff.gguf", "http://b\xfc.de/x.gguf", "http://999.1.1.1/x.gguf"),
        *("https://a..b/x.gguf", "http://[::1/x.gguf", f"http://{'a' * 64}.de/x.gguf", "hf.co/u\n"),
    ],
)
def test_invalid_urls(hub: FakeHub, text: str) -> None:
    message = refusal(text)
    assert " is no URL: " in message and message.endswith(FORMS)
    assert message.isprintable()


@pytest.mark.parametrize("text", ["\udcff", "\0", "\udcff:Q8_0", "a\nb"])
def test_names_of_invalid_characters(hub: FakeHub, text: str) -> None:
    assert "no file and no cached model has this name" in refusal(text)


def test_another_version_as_a_page(hub: FakeHub) -> None:
    assert refusal("https://hf.co/u/r/tree/v2") == (
        "https://hf.co/u/r/tree/v2 is another version than main: give the URL of a file of it, as "
        f"in {hub.url()}/u/r/resolve/v2/FILE.gguf"
    )


def test_a_file_of_a_repository(hub: FakeHub) -> None:
    assert read_name("u/r", "b.gguf") == HubModel("u/r", "", "b.gguf")
    assert read_name("hf.co/u/r", "b.gguf") == HubModel("u/r", "", "b.gguf")
    for text in ("f.gguf", "name", "u/r:Q8_0", "https://a.b/c.gguf"):
        with pytest.raises(RequestError, match="give the repository as USER/REPO"):
            read_name(text, "b.gguf")


# --- files ---


def test_a_name_that_is_too_long_for_a_path(hub: FakeHub) -> None:
    assert "no such file" in refusal(f"./{'x' * 300}.gguf")


def test_an_existing_path_wins(hub: FakeHub) -> None:
    path = Path(REPO)
    path.parent.mkdir()
    path.write_bytes(DATA)
    assert find_file(REPO) == find_file(path) == path
    assert hub.requests == []


def test_a_folder_with_one_model(hub: FakeHub) -> None:
    folder = Path("folder")
    folder.mkdir()
    assert refusal("folder") == "folder is a folder without a GGUF file"
    (folder / "model.safetensors").touch()
    assert "folder is a folder with safetensors files: convert them" in refusal("folder")
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-m.gguf", "notes.txt"):
        (folder / name).touch()
    assert find_file("folder") == folder / "m-00001-of-00002.gguf"
    (folder / "n.gguf").touch()
    assert refusal("folder") == (
        "folder is a folder with 2 models: name one of m-00001-of-00002.gguf, n.gguf"
    )


def test_a_home_folder(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    Path("m.gguf").touch()
    assert find_file("~/m.gguf") == Path.cwd() / "m.gguf"


def test_a_broken_link(hub: FakeHub) -> None:
    Path("m.gguf").symlink_to("gone.gguf")
    assert refusal("m.gguf") == "m.gguf is a link to gone.gguf, which does not exist"


@pytest.mark.parametrize("name", ["lamella-stories-Q8_0", "lamella-stories"])
def test_the_bundled_model_has_a_name(hub: FakeHub, name: str) -> None:
    assert find_file(name) == shipped_model()


# --- the hub and the cache ---


def test_a_cached_model_needs_no_request(hub: FakeHub) -> None:
    path = find_file(f"{REPO}:Q4_K_M")
    assert path.read_bytes() == DATA
    hub.forget()
    for name in (REPO, f"{REPO}:q4_k_m", "model", "MODEL-gguf", f"hf.co/{REPO}:Q4_K_M"):
        assert find_file(name) == path
    assert find_file(f"{hub.url()}/{REPO}/resolve/main/{NAME}") == path
    assert find_file(REPO, file=NAME, offline=True) == path
    assert hub.requests == []


def test_an_update_asks_the_hub(hub: FakeHub) -> None:
    old = find_file(REPO)
    hub.add(REPO, {NAME: DATA + b"new"})
    assert find_file(REPO) == old
    assert find_file(REPO, update=True).read_bytes() == DATA + b"new"


def test_similar_cached_models_are_named(hub: FakeHub) -> None:
    find_file(REPO)
    assert refusal("modle").startswith(
        f"'modle': no file and no cached model has this name; in the cache: {REPO}:Q4_K_M; a model "
    )
    assert f"; in the cache: {REPO}:Q4_K_M; " in refusal("models/model-q4.gguf")


def test_files_by_name_and_progress(hub: FakeHub) -> None:
    progress: list[tuple[int, int, str]] = []
    path = find_file(REPO, file=OTHER, on_progress=lambda *what: progress.append(what))
    assert path.read_bytes() == DATA[:-1]
    assert progress[-1] == (len(DATA) - 1, len(DATA) - 1, OTHER)


def test_a_missing_repository_may_be_meant_as_a_path(hub: FakeHub) -> None:
    assert refusal("no/body").endswith("; no file or folder no/body exists either")
    assert "exists either" not in refusal("hf://no/body")


def test_another_version_gets_the_token(hub: FakeHub) -> None:
    repo = hub.repos[REPO]
    repo.private = True
    path = find_file(f"https://hf.co/{REPO}/blob/{repo.commit}/{NAME}", token=GOOD_TOKEN)
    assert path.read_bytes() == DATA
    assert {(r.host, r.token) for r in hub.requests} == {("hub", GOOD_TOKEN), ("files", "")}


@pytest.mark.parametrize("token", [" ", f" {GOOD_TOKEN}\n"])
def test_a_token_with_spaces_around_it(hub: FakeHub, token: str) -> None:
    find_file(REPO, token=token)
    assert hub.requests[0].token == token.strip()


@pytest.mark.parametrize("token", ["hf_secret hf_secret", "hf_secret\nA: b", "hf_secr\xe9t"])
def test_an_error_never_shows_a_token(
    hub: FakeHub, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the token (HF_TOKEN, or " in refusal(REPO, token=token)
    assert "secr" not in refusal(REPO, token=token) + refusal(f"{hub.url()}/u/r.gguf", token=token)


def test_a_token(hub: FakeHub) -> None:
    hub.repos[REPO].private = True
    with pytest.raises(DownloadError, match="needs a token"):
        find_file(REPO)
    assert find_file(REPO, token=GOOD_TOKEN).read_bytes() == DATA
    with pytest.raises(DownloadError, match="rejects the token"):
        find_file("u/other", token="hf_old")


@pytest.mark.parametrize("of", ["repository", "url"])
def test_a_header(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    monkeypatch.setattr(headers, "HEADER_STEP", 4096)
    write_model(TINY["llama"], tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes() + bytes(1 << 20)
    hub.add(REPO, {NAME: data})
    path = find_file(REPO if of == "repository" else f"{hub.url('files')}/{NAME}", header_only=True)
    with open_gguf(path, header_only=True) as file:
        assert file.metadata.str("general.architecture") == "llama"
    assert path.stat().st_size < len(data) / 2
    assert hub.n_sent < len(data) / 2
