"""The models in the caches: their names, the selection of one, and their removal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub
from hub_world import hub_world

from lamella.base.errors import DownloadError, ModelFileError
from lamella.model.hub import (
    CachedModel,
    cached_models,
    find_cached,
    find_model,
    parse_model,
    remove,
    select,
    similar,
)
from lamella.model.hub.blobs import TRIES
from lamella.model.hub.urls import find_url

BIG = "bart/Big-1B-Instruct-GGUF"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_world(tmp_path, monkeypatch) as made:
        names = ("big-Q4_K_M.gguf", "big-Q8_0.gguf", "big-IQ2_M-00001-of-00002.gguf")
        files = {name: b"GGUF" + bytes(1000 + i) for i, name in enumerate(names)}
        files["big-IQ2_M-00002-of-00002.gguf"] = b"GGUF" + bytes(2000)
        made.add(BIG, files)
        made.add("u/plain", {"plain.gguf": b"GGUF" + bytes(3000)})
        yield made


def get(*names: str) -> None:
    for name in names:
        find_model(parse_model(name))


def model(name: str, repo: str = "", quant: str = "", file: str = "f") -> CachedModel:
    return CachedModel(name, quant, (Path(file),), 1, 0.0, repo)


def test_the_models_of_both_caches(hub: FakeHub) -> None:
    assert cached_models() == []
    get(BIG, f"{BIG}:IQ2_M", "u/plain")
    url = f"{hub.url('files')}/plain.gguf"
    path = find_url(url)
    found = cached_models()
    host = hub.url("files")[7:].replace(":", "_")
    expected = {
        f"{BIG}:Q4_K_M": (1004, "Q4_K_M", 1),
        f"{BIG}:IQ2_M": (1006 + 2004, "IQ2_M", 2),
        "u/plain:plain": (3004, "", 1),
        f"{host}/plain.gguf": (3004, "", 1),
    }
    assert {m.name: (m.size, m.quant, len(m.paths)) for m in found} == expected
    assert [m.name.lower() for m in found] == sorted(m.lower() for m in expected)
    assert next(m for m in found if not m.repo).path == path
    assert all(m.modified == m.path.stat().st_mtime for m in found)


def test_every_name_finds_its_model_without_a_request(hub: FakeHub) -> None:
    get(BIG, f"{BIG}:IQ2_M", "u/plain")
    hub.forget()
    for one in cached_models():
        assert select(cached_models(), one.name) == one
        assert find_cached(parse_model(one.name)) == one.path
    assert hub.requests == []


def test_cached_models_of_a_repository(hub: FakeHub) -> None:
    assert find_cached(parse_model(BIG)) is None
    get(f"{BIG}:Q8_0")
    names = [find_cached(parse_model(f"{BIG}{quant}")) for quant in ("", ":q8_0", ":Q4_K_M")]
    assert [path and path.name for path in names] == ["big-Q8_0.gguf", "big-Q8_0.gguf", None]
    get(f"{BIG}:IQ2_M")
    assert find_cached(parse_model(BIG)) is None  # two, and none is the default
    get(BIG)
    found = find_cached(parse_model(BIG))
    assert found is not None and found.name == "big-Q4_K_M.gguf"


MODELS = [
    model("bart/Qwen3-0.6B-GGUF:Q4_K_M", "bart/Qwen3-0.6B-GGUF", "Q4_K_M"),
    model("bart/Qwen3-0.6B-GGUF:Q8_0", "bart/Qwen3-0.6B-GGUF", "Q8_0"),
    model("bart/SmolLM2-135M-GGUF:Q8_0", "bart/SmolLM2-135M-GGUF", "Q8_0"),
    model("example.com/models/tiny-F16.gguf", "", "F16"),
    model("u/stories-GGUF:Q2_K", "u/stories-GGUF", "Q2_K", "x/tales260K-Q2_K.gguf"),
]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("bart/Qwen3-0.6B-GGUF:Q8_0", 1),
        ("BART/qwen3-0.6b-gguf:q8_0", 1),
        ("qwen3", 0),  # the default quant
        ("qwen3-0.6b:q8_0", 1),
        ("0.6b", 0),
        ("smollm2", 2),
        ("SmolLM2-135M", 2),
        ("tiny", 3),
        ("https://example.com/models/tiny-F16.gguf", 3),
        ("hf.co/bart/Qwen3-0.6B-GGUF:Q8_0", 1),
        ("https://huggingface.co/bart/SmolLM2-135M-GGUF", 2),
        ("tiny-f16.gguf", 3),
        ("tales260K-Q2_K", 4),  # the name of its file
        ("tales260K-Q2_K.gguf", 4),
    ],
)
def test_a_part_of_a_name(text: str, number: int) -> None:
    assert select(MODELS, text) == MODELS[number]


@pytest.mark.parametrize("text", ["wen3", "35M", "qwen3:q2_k", "q2_k", "q8", "", "gg", "qwen4"])
def test_texts_that_are_no_part_of_a_name(text: str) -> None:
    assert select(MODELS, text) is None


def test_a_part_of_several_names() -> None:
    with pytest.raises(ModelFileError) as raised:
        select(MODELS, "bart")
    assert str(raised.value) == (
        f"several cached models match 'bart': {', '.join(m.name for m in MODELS[:3])}"
    )


@pytest.mark.parametrize(
    ("text", "name"), [("quen3-0.6b", MODELS[0].name), ("models/smollm-135m.gguf", MODELS[2].name)]
)
def test_similar_names(text: str, name: str) -> None:
    assert name in similar(MODELS, text)


def test_no_similar_names() -> None:
    assert similar(MODELS, "zzzz") == similar([], "qwen3") == ""


# --- removal ---


def test_a_removed_model_leaves_the_others(hub: FakeHub, tmp_path: Path) -> None:
    get(BIG, f"{BIG}:IQ2_M")
    find_model(parse_model(BIG, "big-Q8_0.gguf"))
    cache = tmp_path / "cache" / "models--bart--Big-1B-Instruct-GGUF"
    split = select(cached_models(), f"{BIG}:IQ2_M")
    assert split is not None
    assert remove(split) == 1006 + 2004
    assert [m.quant for m in cached_models()] == ["Q4_K_M", "Q8_0"]
    assert len(list((cache / "blobs").iterdir())) == 2
    hub.forget()
    assert find_model(parse_model(BIG)).read_bytes() == b"GGUF" + bytes(1000)
    assert hub.deliveries() == []


def test_a_file_of_two_versions(hub: FakeHub, tmp_path: Path) -> None:
    """Old versions of the model go too; a file that another model uses stays."""
    get(BIG)
    files = dict(hub.repos[BIG].files)
    old = files["big-Q4_K_M.gguf"]
    hub.add(BIG, {**files, "big-Q4_K_M.gguf": b"GGUF" + bytes(5000), "big-Q8_0.gguf": old})
    get(BIG, f"{BIG}:Q8_0")
    (first, second) = cached_models()
    assert remove(first) == 5004  # the old file is Q8_0 now
    assert cached_models() == [second]
    assert second.path.read_bytes() == old


def test_the_last_model_takes_the_repository_along(hub: FakeHub, tmp_path: Path) -> None:
    get("u/plain")
    (one,) = cached_models()
    assert remove(one) == 3004
    assert not (tmp_path / "cache" / "models--u--plain").exists()
    assert cached_models() == []


def test_files_of_other_programs_stay(hub: FakeHub, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download  # noqa: PLC0415

    hub.repos["u/plain"].files["README.md"] = b"# Plain"
    readme = Path(hf_hub_download("u/plain", "README.md"))
    get("u/plain")
    (one,) = cached_models()
    assert remove(one) == 3004
    assert readme.read_bytes() == b"# Plain"


def test_a_damaged_cache(hub: FakeHub, tmp_path: Path) -> None:
    get("u/plain")
    (one,) = cached_models()
    (tmp_path / "cache" / "models--u--plain" / "snapshots" / "stray").touch()
    with pytest.raises(ModelFileError, match=r"cannot be removed: .* is damaged there"):
        remove(one)


def test_a_link_out_of_the_cache_loses_only_the_link(hub: FakeHub, tmp_path: Path) -> None:
    get(BIG, f"{BIG}:Q8_0")
    (first, _) = cached_models()
    outside = tmp_path / "mine.gguf"
    first.path.resolve().rename(outside)
    first.path.unlink()
    first.path.symlink_to(outside)
    assert remove(first) == 0
    assert outside.exists() and not first.path.is_symlink()


def test_a_download_is_removed_with_its_empty_folders(hub: FakeHub, tmp_path: Path) -> None:
    find_url(f"{hub.url('files')}/plain.gguf")
    (one,) = cached_models()
    assert remove(one) == 3004
    folder = tmp_path / "lamella" / "downloads"
    assert [path.name for path in folder.iterdir()] == [".locks"]


@pytest.mark.parametrize("whole_repository", [True, False])
def test_a_folder_linked_into_the_cache_stays(
    hub: FakeHub, tmp_path: Path, whole_repository: bool
) -> None:
    mine = tmp_path / "mine" / "model-Q6_K.gguf"
    mine.parent.mkdir()
    mine.write_bytes(b"GGUF" + bytes(7))
    snapshots = tmp_path / "cache" / "models--u--plain" / "snapshots"
    if not whole_repository:
        get("u/plain")
    snapshots.mkdir(parents=True, exist_ok=True)
    (snapshots / "x").symlink_to(mine.parent)
    one = select(cached_models(), "u/plain:Q6_K")
    assert one is not None
    if whole_repository:
        assert remove(one) == 0
        assert not snapshots.exists()
    else:
        with pytest.raises(ModelFileError, match=rf"is a link to {mine.parent}, out of the cache"):
            remove(one)
    assert mine.read_bytes() == b"GGUF" + bytes(7)


def test_a_version_with_the_same_name_in_another_repository_stays(
    hub: FakeHub, tmp_path: Path
) -> None:
    for user in ("v", "u", "w"):
        path = tmp_path / "cache" / f"models--{user}--r" / "snapshots" / "mine" / "m-Q8_0.gguf"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"GGUF")
    for user in ("u", "v"):
        one = select(cached_models(), f"{user}/r:Q8_0")
        assert one is not None
        assert remove(one) == 4
    assert [one.name for one in cached_models()] == ["w/r:Q8_0"]


@pytest.mark.parametrize("name", ["plain.gguf", "q%20q.gguf", "plain.gguf?v=1"])
def test_a_download_is_found_by_its_url(hub: FakeHub, name: str) -> None:
    hub.add("a/b", {"q q.gguf": b"GGUF" + bytes(3000)})
    url = f"http://user:pw@{hub.url('files')[7:]}/{name}"
    path = find_url(url)
    assert "pw" not in str(path)
    one = select(cached_models(), url)
    assert one is not None and one.path == path
    assert select(cached_models(), one.name) == one


@pytest.mark.parametrize(
    "form", ["hf://u/plain", "HTTPS://hf.co/u/plain", "huggingface.co/u/plain"]
)
def test_forms_of_repositories(hub: FakeHub, form: str) -> None:
    get("u/plain", BIG)
    for text in (form, "https://huggingface.co/u/plain/resolve/main/plain.gguf"):
        one = select(cached_models(), text)
        assert one is not None and one.repo == "u/plain"
    assert select(cached_models(), "https://hf.co/u/plain/resolve/main/other.gguf") is None


def test_a_partial_download_is_listed_and_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [4096, 1000, *[0] * TRIES]
    hub.add("a/b", {"part-Q8_0.gguf": b"GGUF" + bytes(9000)})
    with pytest.raises(DownloadError):
        find_url(f"{hub.url('files')}/part-Q8_0.gguf")
    assert cached_models() == []
    (one,) = cached_models(partial=True)
    assert one.name.endswith("/part-Q8_0.gguf")
    assert (one.is_partial, one.size, one.quant) == (True, 1000, "Q8_0")
    assert remove(one) == 1000
    assert cached_models(partial=True) == []
    assert [path.name for path in (tmp_path / "lamella" / "downloads").iterdir()] == [".locks"]


def test_a_split_model_with_missing_files_is_partial(hub: FakeHub) -> None:
    names = [f"m-0000{no}-of-00002.gguf" for no in (1, 2)]
    hub.add("a/b", {name: b"GGUF" + bytes(3000) for name in names})
    path = find_url(f"{hub.url('files')}/{names[0]}")
    path.with_name(names[1]).unlink()
    assert cached_models() == []
    (one,) = cached_models(partial=True)
    assert one.is_partial and one.paths == (path,)
