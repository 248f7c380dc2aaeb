"""How barriers get into files of an object store, each once: a manifest names them, and putting it is the commit.

Under ``url`` are

- ``_manifests/000000/000000012.json``, the *ledger*: the manifests, numbered without a gap, in folders of a thousand.
  Each is put only if there is none of its number. It says that a deliverer *opened* the sink, or names the files of a
  *barrier*. Who opens the sink puts the next one; so does who delivers, after the last one that was put by itself.
  So whoever opened the sink before finds that its number is taken, and the one who took it says so;
- ``prices/b00000007.r00000/part-00000.000000012.<uuid>.parquet``: a file of the deliverer that the manifest 12 opened
  the sink for. Nobody has to believe it before a manifest names it. What dead deliverers left is swept by a later one;
- ``_probes``, while somebody looks whether the store can do this.

Manifests are never deleted: a deliverer that slept meanwhile would find its number free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from airflow_barrier.protocol.deliveries import Counts, Remedy
from airflow_barrier.protocol.errors import LedgerError, SinkRefusedError, SinkUnavailableError
from airflow_barrier.sinks.files.object_store import ObjectStore
from airflow_barrier.sinks.files.steps import FileSteps
from airflow_barrier.sinks.ledger import Deliverer, LedgerRecord, check_follows, command
from airflow_barrier.sinks.port import Delivery

_MANIFESTS, _PROBES = "_manifests", "_probes"
#: Manifests in a folder: what one listing tells.
_IN_A_FOLDER = 1000
#: How often those who open a sink at the same moment may be in each other's way.
_TRIES = 50
#: Who opens the sink looks at so many of the last manifests for files that none of them names.
_LOOKED_AT = 20
_FOLDER = re.compile(r"\d{6}\Z")
_MANIFEST = re.compile(r"(\d{9})\.json\Z")
_FILE = re.compile(r"b\d+\.r\d+/part-\d+\.(\d+)\.[0-9a-f]{32}\.[a-z]+\Z")


@dataclass
class _Opened:
    """This process's right to deliver, until another one opens the sink. ``last``: the newest manifest's number."""

    who: Deliverer
    number: int
    last: int


class ManifestChannel(FileSteps[ObjectStore]):
    """Delivers what was ``declared`` into an object store."""

    _opened: _Opened | None = None

    def _try_out(self) -> None:
        """A store that ignores the condition takes each put: then two deliverers would commit."""
        probe = f"{_PROBES}/{uuid4()}"
        try:
            first = self._store.put_new(probe, b"1")
            # Who opens the sink sweeps probes: that one was taken once more is no proof yet.
            replaced = all(self._store.put_new(probe, b"2") for _ in range(3))
        finally:
            self._store.remove(probe)
        if not first or replaced:
            raise SinkRefusedError(
                f"{self}: expected an object store that puts an object if there is none of its name, and only then "
                f"(If-None-Match), found that {self._sink.url} {'replaces it' if first else 'says that there is one'}; "
                "deliver to a store that has conditional puts, to a disk or to HDFS"
            )

    # --- the ledger -------------------------------------------------------------------------------

    def look(self, deliverer: Deliverer) -> LedgerRecord:
        last = self._newest()
        return self._look(last, self._seen(last).get(last), deliverer, None)

    def _look(
        self, last: int, newest: Mapping[str, Any] | None, deliverer: Deliverer, remedy: Remedy | None
    ) -> LedgerRecord:
        """Return the record to go on from, by the newest manifest. Raises LedgerError."""
        if newest is not None:
            owner = self._owner(deliverer)
            always = {name: newest.get(name) for name in ("format", "topology", "sink")}
            self._check_owner(_path_of(last), {**owner, **always}, owner, remedy)
        return self._go_on_from(deliverer, newest, remedy)

    def open(self, deliverer: Deliverer, remedy: Remedy | None = None) -> LedgerRecord:
        for _ in range(_TRIES):
            last = self._newest()
            seen = self._seen(last)
            record = self._look(last, seen.get(last), deliverer, remedy)
            files = self._files(seen)
            if ahead := next((path for path, number in files.items() if number > last), None):
                if self._newest() != last:
                    continue  # another one has opened the sink since, and writes it
                raise LedgerError(  # safety: no-files-ahead-of-manifests
                    f"{self}: expected only files of deliverers that {self._at(_MANIFESTS)} knows of (its newest is "
                    f"{last or 'none'}), found {self._at(ahead)}; put the manifests back, or move such files away and "
                    f"load the sink anew: {command('redeliver', deliverer)}"
                )
            at = record.position
            last_barrier = {"barrier_id": at and at.barrier_id, "revision": at and at.revision}
            ours = {"says": "opened", **record.to_json(), **last_barrier, "request_key": deliverer.request_key}
            if self._put(last + 1, ours):
                self._opened, self._record = _Opened(deliverer, last + 1, last + 1), record
                self._sweep(seen, files)
                return record
        raise SinkUnavailableError(
            f"{self}: expected to put the next manifest into {self._at(_MANIFESTS)}, found that others had put it each "
            f"of {_TRIES} times; it is tried again; if it stays so, see which tasks deliver to it"
        )

    def _newest(self) -> int:
        """The number of the last manifest; 0: there is none."""
        folders = [name for name in self._store.names(_MANIFESTS) if _FOLDER.match(name)]
        names = self._store.names(f"{_MANIFESTS}/{folders[-1]}") if folders else []
        return max((int(found[1]) for found in map(_MANIFEST.match, names) if found), default=0)

    def _seen(self, last: int) -> dict[int, Mapping[str, Any]]:
        """The last manifests without a gap, newest first."""
        seen: dict[int, Mapping[str, Any]] = {}
        with suppress(FileNotFoundError):
            for number in range(last, max(last - _LOOKED_AT, 0), -1):
                seen[number] = self._said(number)
        return seen

    def _files(self, seen: Mapping[int, Mapping[str, Any]]) -> dict[str, int]:
        """The files that the deliverers of these manifests may have written, and the number of who wrote each."""
        known = [manifest["barrier_id"] for manifest in seen.values()]
        start = "" if None in known or not known else f"b{min(known):08}."
        found = {
            f"{target}/{name}": _FILE.match(name)
            for target in self._declared.targets.values()
            for name in self._store.paths(target, start)
        }
        return {path: int(match[1]) for path, match in found.items() if match}

    def _sweep(self, seen: Mapping[int, Mapping[str, Any]], files: Mapping[str, int]) -> None:
        """Delete files of deliverers that these manifests superseded: no later manifest can name them."""
        named = {
            f"{target}/{file['name']}"
            for manifest in seen.values()
            for target, written in manifest.get("files", {}).items()
            for file in written
        }
        left = [path for path, number in files.items() if number in seen and path not in named]
        for path in (*left, *(f"{_PROBES}/{name}" for name in self._store.names(_PROBES))):
            with suppress(SinkUnavailableError):  # the next one sweeps it
                self._store.remove(path)

    # --- a barrier --------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> Mapping[str, Counts]:
        opened = self._opened
        assert opened is not None, "open() comes before deliver()"
        assert self._record is not None
        if delivery.former is None:
            check_follows(str(self), delivery.position, delivery.after, self._record.position)
        now = self._record.delivered(self._empty_record(opened.who), delivery.position)
        barrier = f"b{delivery.barrier_id:08}.r{delivery.revision:05}"
        end = f".{opened.number:09}.{uuid4().hex}"
        files: dict[str, list[dict[str, Any]]] = {}
        counts: dict[str, Counts] = {}
        for table, rows in delivery.tables.items():
            target = self._declared.targets[table]
            written, counts[table] = self._write_rows(rows, delivery.rows, f"{target}/{barrier}", end)
            files[target] = [{**file, "name": f"{barrier}/{file['name']}"} for file in written]
        said = self._said_of(now, opened.who, opened.number, delivery, files)
        if not self._put(opened.last + 1, {"says": "delivered", **said}):
            raise self._fenced(opened.number, opened.who)  # safety: next-manifest-is-mine
        opened.last, self._record = opened.last + 1, now
        return counts

    # --- manifests --------------------------------------------------------------------------------

    def _put(self, number: int, manifest: Mapping[str, Any]) -> bool:
        """Put the manifest; return False if another one has its number. After a lost reply it is there already."""
        ours = {"number": number, **manifest, "token": uuid4().hex}
        if self._store.put_new(_path_of(number), json.dumps(ours).encode()):
            return True
        with suppress(FileNotFoundError):
            return bool(self._said(number).get("token") == ours["token"])
        return False

    def _said(self, number: int) -> Mapping[str, Any]:
        """Raises FileNotFoundError."""
        try:
            return dict(json.loads(self._store.read(_path_of(number))))
        except (ValueError, TypeError) as error:
            raise LedgerError(
                f"{self}: expected a JSON object in {self._at(_path_of(number))}, found something else ({error}); put "
                "it back as it was"
            ) from error


def _path_of(number: int) -> str:
    return f"{_MANIFESTS}/{number // _IN_A_FOLDER:06}/{number:09}.json"
