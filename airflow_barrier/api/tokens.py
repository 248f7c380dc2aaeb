"""Who may ask a server of its own: a file of tokens, of which it holds the digests only."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_barrier.protocol.errors import ConfigurationError

log = logging.getLogger(__name__)

_LINE = re.compile(r"(?P<name>[^:\s]+):(?P<digest>[0-9a-f]{64})(?::(?P<dags>[^:\s]+))?")


@dataclass(frozen=True)
class Bearer:
    """The holder of a token. ``dags``: which DAGs they may read; None: all."""

    name: str
    dags: frozenset[str] | None

    def readable(self, dag_ids: Iterable[str]) -> set[str]:
        return set(dag_ids) if self.dags is None else set(dag_ids) & self.dags


#: For a server that has no tokens.
ANYBODY = Bearer("anybody", None)


class Tokens:
    """The tokens of a file: lines of ``name:SHA-256 of the token[:dag,dag,...]``, blank ones and ``#`` comments aside.

    The file is read again when it has changed. One that cannot be used any more lets nobody in, and the log says why.
    Raises :class:`ConfigurationError` for one that cannot be used to begin with.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._look()
        self._bearers = _read(path)

    def bearer(self, token: str) -> Bearer | None:
        """Return the token's holder. Takes as long for each that is nobody's."""
        self._follow()
        digest, found = _digest(token), None
        for known, bearer in self._bearers:
            if hmac.compare_digest(known, digest):
                found = bearer
        return found

    def _follow(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen, self._bearers = seen, []
        try:
            self._bearers = _read(self._path)
        except ConfigurationError as error:
            log.error("%s; nobody gets in until then", error)

    def _look(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode


def add_token(path: Path, name: str, dags: Sequence[str]) -> str:
    """A new token for ``name``, whose line is added to the file; a file that is not there is made, for its owner only.

    Raises :class:`ConfigurationError`.
    """
    token = secrets.token_urlsafe(32)
    line = f"{name}:{_digest(token)}" + (f":{','.join(dags)}" if dags else "")
    if _LINE.fullmatch(line) is None:
        raise ConfigurationError(
            f"token: expected a name, and DAGs, without colons, commas and spaces, found {name!r} and {list(dags)!r}"
        )
    if path.exists() and name in {bearer.name for _, bearer in _read(path)}:
        raise ConfigurationError(f"{path}: expected no token of {name} yet, found one; take its line out first")
    with open(path, "a", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
        file.write(line + "\n")
    return token


def _read(path: Path) -> list[tuple[str, Bearer]]:
    try:
        text, mode = path.read_text(encoding="utf-8"), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: expected a file of tokens, found that it cannot be read: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(
            f"{path}: expected a file that its owner alone can read, found mode {stat.S_IMODE(mode):o}; run chmod 600"
        )
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:  # the line itself may hold a token
            raise ConfigurationError(
                f"{path}, line {number}: expected name:SHA-256[:dag,dag,...], found something else; make such a line "
                "by airflow-barrier serve --token-file FILE --new-token NAME"
            )
        dags = match["dags"]
        found.append((match["digest"], Bearer(match["name"], None if dags is None else frozenset(dags.split(",")))))
    return found


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
