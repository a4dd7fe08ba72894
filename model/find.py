"""The one way from the name of a model to its file.

    path = find_file("USER/REPO:Q4_K_M")

A name is a file, USER/REPO[:QUANT] on Hugging Face, the URL of a GGUF file, or a name (or a part of
one) in the cache. An existing path wins over the other readings. A cached model is used without a
request. The commands and `lamella.load` find models here. Tested by tests/model/test_find.py.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path
from reprlib import repr as shortened
from typing import Final
from urllib.parse import quote

from ..base.errors import DownloadError, ModelFileError, RequestError
from ..base.log import get_logger
from .hub import (
    FORMS,
    CachedModel,
    DownloadProgress,
    HubModel,
    cached_models,
    find_cached,
    find_model,
    parse_model,
    read_url,
    select,
    similar,
    using_token,
)
from .hub.files import HubFile, candidates
from .hub.headers import find_header
from .hub.names import Url, cache_name
from .hub.urls import find_cached_url, find_url, find_url_header
from .shipped import NAME, shipped_model

log = get_logger("model")

SEARCH: Final = "https://huggingface.co/models?library=gguf&search="

Source = Path | HubModel | Url  # what a name means


def find_file(
    name: str | os.PathLike[str],
    *,
    file: str = "",
    offline: bool = False,
    update: bool = False,
    token: str | None = None,
    header_only: bool = False,
    on_progress: DownloadProgress | None = None,
) -> Path:
    """Return the path of the (first) file of a model. Downloads a model that is not cached.

    Args:
        name: the model, see above.
        file: the name of a file in the repository, instead of a quant.
        offline: use only the cache.
        update: download a newer version of a cached model from the hub. A warning names a cached
            file of another server: it is not downloaded again.
        token: for the hub; None: that of HF_TOKEN or of a login.
        header_only: download at least the header instead of all; deleted when the process ends.
        on_progress: called with the bytes done, the bytes in total and the first file's name.

    Raises:
        ModelFileError: there is no such model, or the file is missing.
        DownloadError: the model cannot be downloaded; names the cause and a remedy.
        RequestError: `file` is given, but `name` is no repository.
    """
    with using_token(token):
        source = read_name(os.fspath(name), file)
        if isinstance(source, Path):
            return source
        if isinstance(source, HubModel):
            found = None if update else find_cached(source)
            return found or _find_on_hub(source, os.fspath(name), offline, header_only, on_progress)
        if header_only:
            return find_url_header(source, _folder(), offline=offline)
        if update and find_cached_url(source):
            log.warning(
                f"{cache_name(source)} is cached; for a newer version, `lamella rm` it first"
            )
        return find_url(source, offline=offline, on_progress=on_progress)


def _find_on_hub(
    wanted: HubModel,
    name: str,
    offline: bool,
    header_only: bool,
    on_progress: DownloadProgress | None,
) -> Path:
    try:
        if header_only:
            return find_header(wanted, _folder(), offline=offline)
        return find_model(wanted, offline=offline, on_progress=on_progress)
    except DownloadError as e:
        if name == wanted.repo:  # it may be meant as a path
            raise DownloadError(f"{e}; no file or folder {name} exists either") from e
        raise


def _folder() -> Path:
    """A folder that is deleted at exit: a header is read several times."""
    folder = tempfile.mkdtemp(prefix="lamella-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


# --- reading a name ---


def read_name(text: str, file: str = "") -> Source:
    """Return the meaning of a model's name: a file, a model of the hub, or a URL.

    Raises:
        ModelFileError: it means nothing, or several cached models.
        RequestError: `file` is given, but the name is no repository.
    """
    if not file:
        return _read(text)
    source = None if _is_path(text) or "/" not in text else _read(text)
    if not isinstance(source, HubModel) or source.quant or source.file:
        raise RequestError(
            f"-hff {file} names a file of a repository: give the repository as USER/REPO"
        )
    return HubModel(source.repo, file=file)


def _read(text: str) -> Source:
    if _is_path(text):
        return _local(Path(os.path.expanduser(text)))
    source = read_url(text)
    if source is not None:
        return source
    if "/" in text and not text.lower().endswith(".gguf"):
        try:
            return parse_model(text)
        except RequestError:
            pass
    return _read_cached(text)


def _is_path(text: str) -> bool:
    """True if a text is an existing path, or can only be one."""
    is_one = os.path.isabs(text) or text.startswith(("./", "../", "~", ".\\", "..\\"))
    return is_one or (text != "" and os.path.lexists(text))


def _read_cached(text: str) -> Path:
    """Return the file of the bundled or a cached model by its name.

    Raises:
        ModelFileError: no model, or several, have the name.
    """
    bundled = NAME.removesuffix(".gguf")
    if text.lower() in (bundled.lower(), bundled.rpartition("-")[0]):
        return shipped_model()
    models = cached_models()
    found = select(models, text)
    if found is None:
        raise ModelFileError(_unknown(text, models))
    if found.name != text:
        log.info(f"using {found.name} from the cache")
    return found.path


def _unknown(text: str, models: list[CachedModel]) -> str:
    close = similar(models, text)
    hint = f"; in the cache: {close}" if close else ""
    if text.lower().endswith(".gguf") or "/" in text:
        return f"{text}: no such file{hint}; {FORMS}"
    what = f"{shortened(text)}: no file and no cached model has this name{hint}; {FORMS}"
    if re.search(r"\s", text):
        return f"{what}. A prompt comes after the model, or after -p"
    name = quote(text.partition(":")[0], errors="replace")
    return f"{what}. Repositories with this name: {SEARCH}{name}" if name else what


# --- files ---


def _local(path: Path) -> Path:
    """Return the model's file: `path`, or the only model in the folder `path`."""
    if os.path.isdir(path):  # False for an invalid path, where Path's methods raise
        return _only_model(path)
    if os.path.exists(path):
        return path
    if os.path.islink(path):
        raise ModelFileError(f"{path} is a link to {os.readlink(path)}, which does not exist")
    raise ModelFileError(_unknown(str(path), cached_models()))


def _only_model(folder: Path) -> Path:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as e:
        raise ModelFileError(f"{folder} is a folder that cannot be read: {e.strerror}") from e
    found = candidates(HubFile(name, 0) for name in names)
    if len(found) == 1:
        return folder / found[0].name
    if found:
        listed = ", ".join(one.name for one in found)
        raise ModelFileError(f"{folder} is a folder with {len(found)} models: name one of {listed}")
    if any(name.endswith(".safetensors") for name in names):
        raise ModelFileError(
            f"{folder} is a folder with safetensors files: convert them with llama.cpp's "
            "convert_hf_to_gguf.py, or use a repository named ...-GGUF"
        )
    raise ModelFileError(f"{folder} is a folder without a GGUF file")
