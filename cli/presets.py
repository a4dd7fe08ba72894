"""The models of `lamella serve --models-dir` and `--models-preset`: their names, and the flags of
their processes.

Keys of a preset are flags, without dashes: long names, short ones, or the names of variables. They
are parsed here, so that an error names the line. Knows no flag but those of the router.
Tested by tests/cli/test_presets.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from ..base.errors import LamellaError, RequestError
from ..base.log import get_logger
from ..base.options import declarations, parse_number, truth
from ..model.hub import parse_model
from ..runtime.params import OpenParams, RequestParams
from ..server.config import ServerConfig
from ..server.router.config import RouterConfig
from ..server.router.ini import FOR_ALL, Entry, Section, read_ini
from ..server.router.preset import N_STOP_SECONDS, SUFFIX, Preset, check_names, find_models
from . import sources
from .flags import given
from .model_flags import FLAGS
from .parser import Note, Parser, Refused

log = get_logger("router")

SLEEP: Final = "sleep_idle_seconds"
CACHE: Final = "cache_ram"
ALIAS: Final = "alias"
N_STOP_SECONDS_MAX: Final = 3600
VERSION: Final = "version"
# keys of presets that are no flags; the second is about a list of cached models, which we lack
LOAD, STOP, DEDUP = "load-on-startup", "stop-timeout", "dedup-cache-models"
# flags of the server that clients talk to
OF_ROUTER: Final = frozenset(
    {
        *("api_file_keys", "api_keys", "api_prefix", "cors_credentials", "cors_headers"),
        *("cors_methods", "cors_origins", "host", "max_connections", "port", "reuse_port"),
        *("ssl_cert_file", "ssl_key_file", "static_path", "ui", "config", "cache_dir"),
        *(declarations(RouterConfig).keys() - {SLEEP}),
    }
)


OPTIONS: Final = (ServerConfig, RouterConfig, OpenParams, RequestParams)
Value = TypeVar("Value")


class Setting(NamedTuple):
    """A flag that a preset sets: what it sets, its arguments, and the text of its value."""

    dest: str
    arguments: tuple[str, ...]
    value: str


class PresetReader:
    """Reads presets with the flags of a parser."""

    def __init__(self, parser: Parser, *, shares_cache: bool = False) -> None:
        """`shares_cache`: the command line sets the memory for prompts, which wins over presets."""
        self._parser = parser
        self._shares_cache = shares_cache
        self._flags = parser.flags_with_values()
        self._variables = {
            name: action for action in self._flags.values() for name in sources.variables(action)
        }

    def presets(self, config: RouterConfig) -> list[Preset]:
        """All models. Raises RequestError, which names the file, the line and the key."""
        files = find_models(config.models_dir) if config.models_dir else {}
        sections = read_ini(config.models_preset) if config.models_preset else []
        shared = next((one for one in sections if one.name == FOR_ALL), Section("", FOR_ALL, []))
        own = {one.name: one for one in sections if one.name != FOR_ALL}
        names = [*own, *(name for name in files if name not in own)]
        found = [
            self._preset(own.get(name, Section("", name, [])), shared, files, config)
            for name in names
        ]
        if not found:
            where = config.models_preset or config.models_dir
            raise RequestError(f"{where} has no model: a folder has .gguf files, a preset [NAME]s")
        check_names(found)
        return found

    def _preset(
        self, section: Section, shared: Section, files: Mapping[str, Path], config: RouterConfig
    ) -> Preset:
        settings = {one.dest: one for one in self._settings(shared)}
        own = {one.dest: one for one in self._settings(section)}
        kept = sources.not_replaced(self._parser, settings, own)
        settings = {**kept, **own}
        source = next((settings[dest].value for dest in FLAGS if dest in settings), "")
        if not source:
            source = _source(section, files)
            settings["model"] = Setting("model", (f"--model={source}",), source)
        elif source.endswith(SUFFIX) and "://" not in source and not Path(source).is_file():
            raise RequestError(f"{section.place}: [{section.name}]: there is no file {source}")
        sleep = settings.pop(SLEEP, None)
        aliases = settings.pop(ALIAS, None)
        names = [] if aliases is None else [name.strip() for name in aliases.value.split(",")]
        return Preset(
            name=section.name,
            aliases=tuple(name for name in names if name not in ("", section.name)),
            source=source,
            flags=tuple(part for one in settings.values() for part in one.arguments),
            load_on_startup=_own(section, shared, LOAD, truth, False),
            stop_timeout=_own(section, shared, STOP, _seconds, N_STOP_SECONDS),
            sleep_idle_seconds=config.sleep_idle_seconds if sleep is None else int(sleep.value),
            has_own_cache=CACHE in settings and not self._shares_cache,
        )

    def _settings(self, section: Section) -> Iterator[Setting]:
        for entry in section.entries:
            if entry.key in (LOAD, STOP, DEDUP, VERSION):
                continue
            action = self._action(entry)
            if action.dest in OF_ROUTER:
                log.warning("%s: %s has no effect: the router decides it", entry.place, entry.key)
                continue
            if self._has_effect(entry, action):
                yield Setting(action.dest, self._arguments(entry, action), entry.value)

    def _action(self, entry: Entry) -> argparse.Action:
        """The flag that a key stands for. Raises RequestError if there is none."""
        long = "--" + entry.key.lstrip("-").replace("_", "-")
        for name in (long, "-" + entry.key.lstrip("-")):
            if name in self._flags:
                return self._flags[name]
        if entry.key in self._variables:
            return self._variables[entry.key]
        hint = sources.suggestion(long, self._flags)
        raise RequestError(f"{entry.place}: {entry.key}: unknown key{hint}")

    def _has_effect(self, entry: Entry, action: argparse.Action) -> bool:
        """False, with a line in the log, for a flag of llama.cpp without effect. Raises
        RequestError if the value is invalid."""
        found = argparse.Namespace()
        try:
            value = _parts(entry, action)
            sources.apply(self._parser, sources.Source(entry.place, action, value), found)
            for kind in OPTIONS:
                kind.make(given(found, kind))
        except Refused as error:
            raise RequestError(f"{entry.place}: {entry.key}: {error.message}") from None
        except (argparse.ArgumentError, ValueError) as error:
            cause = getattr(error, "message", error)
            raise RequestError(f"{entry.place}: {entry.key}: {cause}") from None
        except LamellaError as error:
            cause = self._parser.in_flags(str(error))
            raise RequestError(f"{entry.place}: {cause}") from None
        notes = [note for note in vars(found).values() if isinstance(note, Note)]
        for note in notes:
            log.warning("%s: %s has no effect: %s", entry.place, entry.key, note.why)
        return not notes

    def _arguments(self, entry: Entry, action: argparse.Action) -> tuple[str, ...]:
        if action.nargs == 0:
            used = sources.switched(self._parser, action, is_on=truth(entry.value))
            return () if used is None else (used.option_strings[-1],)
        flag = action.option_strings[-1]
        parts = _parts(entry, action)
        return (f"{flag}={parts}",) if isinstance(parts, str) else (flag, *parts)


def _parts(entry: Entry, action: argparse.Action) -> str | list[str]:
    """The value of a flag; a list if it has several."""
    return entry.value.split() if isinstance(action.nargs, int) and action.nargs else entry.value


def _source(section: Section, files: Mapping[str, Path]) -> str:
    """The model of a section that names none."""
    if section.name in files:
        return str(files[section.name])
    try:
        parse_model(section.name)
    except RequestError:
        raise RequestError(
            f"{section.place}: [{section.name}] needs a model: model = FILE, or "
            "hf-repo = USER/REPO:QUANT, unless it names a file of --models-dir"
        ) from None
    return section.name


def _seconds(text: str) -> int:
    found = parse_number(int, text)
    if not 0 <= found <= N_STOP_SECONDS_MAX:
        raise ValueError(f"{found} must be 0 to {N_STOP_SECONDS_MAX}")
    return found


def _own(
    section: Section, shared: Section, key: str, parse: Callable[[str], Value], default: Value
) -> Value:
    """The value of a key that is no flag."""
    for entry in (*section.entries, *shared.entries):
        if entry.key == key:
            try:
                return parse(entry.value)
            except ValueError as error:
                raise RequestError(f"{entry.place}: {key}: {error}") from None
    return default
