"""How barriers get into files, each once: a ledger beside the data, and one rename that commits.

In ``url/_barrier/<topology>.<sink>``, the *ledger*, are

- ``_delivered_by/owner.json``: whose ledger it is;
- ``deliverer-000012``: the folder of who opened the sink last, the twelfth to do so, with the ledger's one ``token``.
  What a deliverer writes it writes in its folder, and a barrier's whole folder leaves it by one rename, which is the
  commit. Who opens the sink renames the last one's folder to its own, and asks *then* what was delivered: a commit
  of the last one that still comes finds nothing to rename. A folder that one makes anew without knowing has no token;
- ``delivered/b00000007.r00000``: what was delivered last, with ``record.json``; and a hundred of those before.

After the commit each target's files are moved from there to where readers look. If that is interrupted, the next one to
open the sink does the rest. A move whose source is gone was made already: so a target never gets a barrier twice,
and files that a reader took away do not come back.

In each target, ``_delivered_by/owner.json`` says by which sink it is filled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from airflow_barrier.protocol.deliveries import Counts, Position, Remedy
from airflow_barrier.protocol.errors import LedgerError, SinkRefusedError, SinkUnavailableError
from airflow_barrier.sinks.files.steps import FileSteps
from airflow_barrier.sinks.files.stores import Store
from airflow_barrier.sinks.ledger import Deliverer, LedgerRecord, check_follows, command
from airflow_barrier.sinks.port import Delivery

_LEDGERS, _OWNER, _TOKEN, _RECORD, _MARK = "_barrier", "owner.json", "token", "record.json", "_delivered_by"
#: Barriers that a ledger remembers beside the last one.
_KEPT = 100
#: How often those who open a sink at the same moment may be in each other's way.
_TRIES = 50
_BARRIER = re.compile(r"b(\d+)\.r(\d+)\Z")
_DELIVERER = re.compile(r"deliverer-(\d+)\Z")


@dataclass(frozen=True)
class _Opened:
    """This process's right to deliver, until another one opens the sink."""

    who: Deliverer
    ledger: str
    number: int

    @property
    def folder(self) -> str:
        return f"{self.ledger}/deliverer-{self.number:06}"


class FileChannel(FileSteps[Store]):
    """Delivers what was ``declared`` into a :class:`~airflow_barrier.sinks.files.stores.Store`."""

    _opened: _Opened | None = None
    #: what is in ``delivered``, oldest first
    _kept: Sequence[str] = ()

    def _try_out(self) -> None:
        probe = f"{_LEDGERS}/{self._probes}{uuid4()}"
        made = self._store.missing(probe)
        try:
            self._try_moves(probe)
        except FileNotFoundError as error:
            raise SinkUnavailableError(
                f"{self}: expected {self._at(probe)} to stay while the sink is tried out, found it gone; it is tried "
                "again; if it stays so, see what deletes files there"
            ) from error
        finally:
            self._store.remove(probe)
            self._store.remove_empty(made)

    def _try_moves(self, probe: str) -> None:
        """See that folders can be written and moved, and that a move replaces nothing."""
        for name in ("one", "two"):
            self._store.make(f"{probe}/{name}")
            self._write(f"{probe}/{name}/token", name)
        moved = self._store.rename(f"{probe}/one", f"{probe}/two")
        there, token = self._store.names(f"{probe}/two"), self._store.read(f"{probe}/two/token")
        if moved or there != ["token"] or json.loads(token) != "two":
            raise SinkRefusedError(
                f"{self}: expected a file system that moves no folder onto another one, or into it, found that "
                f"{self._sink.url} does; deliver to a local disk, or to HDFS by its name node's own HTTP address"
            )

    @property
    def _probes(self) -> str:
        return f"probe.{self._declared.name}."

    # --- the ledger -------------------------------------------------------------------------------

    def look(self, deliverer: Deliverer) -> LedgerRecord:
        ledger, owner = f"{_LEDGERS}/{deliverer.topology}.{deliverer.sink}", self._owner(deliverer)
        self._check_owner(f"{ledger}/{_MARK}", self._said(f"{ledger}/{_MARK}/{_OWNER}") or owner, owner, None)
        return self._look(ledger, deliverer, None)

    def open(self, deliverer: Deliverer, remedy: Remedy | None = None) -> LedgerRecord:
        ledger = f"{_LEDGERS}/{deliverer.topology}.{deliverer.sink}"
        self._look(ledger, deliverer, remedy)  # who is refused fences nobody
        self._claim(ledger, deliverer, remedy)
        opened = self._take_over(ledger, deliverer)
        self._kept = self._delivered(ledger)
        self._opened, self._record = opened, self._look(ledger, deliverer, remedy)
        if self._kept:
            self._publish(opened, self._kept[-1])
        if remedy is None:
            self._check_no_data(self._record, deliverer)
        self._sweep(opened)
        return self._record

    def _look(self, ledger: str, deliverer: Deliverer, remedy: Remedy | None) -> LedgerRecord:
        """Return the record to go on from. Raises LedgerError, unless a person has decided otherwise since."""
        kept, owner = self._delivered(ledger), self._said(f"{ledger}/{_MARK}/{_OWNER}")
        if not kept:
            return self._go_on_from(deliverer, None, remedy)
        path = f"{ledger}/delivered/{kept[-1]}/{_RECORD}"
        said = self._said(path)
        if said is None:
            raise SinkUnavailableError(
                f"{self}: expected {self._at(path)}, found it gone; it is tried again; if it stays so, put it back"
            )
        now = {} if owner is None else {"incarnation": owner["incarnation"], "place": owner["url"]}
        return self._go_on_from(deliverer, {**said, **now}, remedy)

    def _delivered(self, ledger: str) -> list[str]:
        """The folders of the barriers that the ledger has, oldest first."""
        found = [name for name in self._store.names(f"{ledger}/delivered") or [] if _BARRIER.match(name)]
        return sorted(found, key=_position_of)

    def _claim(self, ledger: str, who: Deliverer, remedy: Remedy | None) -> None:
        """See that ledger and targets are this sink's. Those that are nobody's become so; ``remedy``: also others."""
        owner = self._owner(who)
        places = [ledger, *self._declared.targets.values()]
        found = {place: self._said(f"{place}/{_MARK}/{_OWNER}") for place in places}
        for place, said in found.items():
            self._check_owner(f"{place}/{_MARK}", said or owner, owner, remedy)
        if not self._store.exists(ledger):
            ours = next((place for place, said in found.items() if said), None)
            if ours and remedy is None:
                raise LedgerError(  # safety: ledger-is-there
                    f"{self}: expected the ledger {self._at(ledger)}, since {self._at(ours)} was delivered to by this "
                    f"sink, found none; put it back, or move {self._at(ours)} away and load the sink anew: "
                    f"{command('redeliver', who)}"
                )
            if remedy is None:
                self._check_no_data(self._empty_record(who), who)
            self._move_in(ledger, {f"{_MARK}/{_OWNER}": owner, f"deliverer-000000/{_TOKEN}": None}, who)
            found[ledger] = self._said(f"{ledger}/{_MARK}/{_OWNER}")
        if not found[ledger] and remedy is None:
            self._check_owner(f"{ledger}/{_MARK}", {}, owner, None)
        for place, said in found.items():
            if said == owner:
                continue
            if said:
                self._store.remove(f"{place}/{_MARK}")
            if not self._move_in(f"{place}/{_MARK}", {_OWNER: owner}, who):
                there = f"{place}/{_MARK}"
                self._check_owner(there, self._said(f"{there}/{_OWNER}") or {}, owner, None)
        self._store.make(f"{ledger}/delivered")

    def _check_no_data(self, record: LedgerRecord, who: Deliverer) -> None:
        new = [target for target in self._declared.targets.values() if record.targets[target].position is None]
        if there := self._barriers(new):
            raise LedgerError(  # safety: no-data-without-ledger
                f"{self}: expected no barriers, since the ledger knows of none in that folder, found "
                f"{self._at(there)}; put the ledger back, or move them away and load the sink anew: "
                f"{command('redeliver', who)}"
            )

    def _barriers(self, targets: Collection[str]) -> str | None:
        """One that is in a target, if any is."""
        for target in targets:
            if there := next(filter(_BARRIER.match, self._store.names(target) or []), None):
                return f"{target}/{there}"
        return None

    def _take_over(self, ledger: str, who: Deliverer) -> _Opened:
        """Take away what earlier deliverers would commit: from here on they can commit nothing."""
        for _ in range(_TRIES):
            # A listing beside renames may miss what is there: then the rename, or the token, tells.
            last = max(self._numbers(ledger), default=0)
            opened = _Opened(who, ledger, last + 1)
            with suppress(FileNotFoundError):
                if not self._store.rename(f"{ledger}/deliverer-{last:06}", opened.folder):
                    continue
                if self._store.exists(f"{opened.folder}/{_TOKEN}"):  # safety: one-token
                    return opened
                self._store.remove(opened.folder)
        raise SinkUnavailableError(
            f"{self}: expected to find the folder of the last deliverer in {self._at(ledger)}, found that others took "
            f"it, or none, each of {_TRIES} times; it is tried again; if it stays so, see which tasks deliver to it"
        )

    def _numbers(self, ledger: str) -> list[int]:
        return [int(found[1]) for name in self._store.names(ledger) or [] if (found := _DELIVERER.match(name))]

    def _sweep(self, opened: _Opened) -> None:
        left = [f"{opened.folder}/{name}" for name in self._store.names(opened.folder) or [] if name != _TOKEN]
        lower = (number for number in self._numbers(opened.ledger) if number < opened.number)
        left += [f"{opened.ledger}/deliverer-{number:06}" for number in lower]
        inside = self._store.names(opened.ledger) or []
        left += [f"{opened.ledger}/{name}" for name in inside if name.startswith("dead-")]
        ours = (f"new.{opened.who.topology}.{opened.who.sink}.", self._probes)
        left += [f"{_LEDGERS}/{name}" for name in self._store.names(_LEDGERS) or [] if name.startswith(ours)]
        for folder in (*left, *self._forgotten(opened)):
            with suppress(SinkUnavailableError):  # the next one sweeps it
                self._store.remove(folder)

    def _forgotten(self, opened: _Opened) -> list[str]:
        old, self._kept = self._kept[: -_KEPT - 1], self._kept[-_KEPT - 1 :]
        return [f"{opened.ledger}/delivered/{name}" for name in old]

    def _move_in(self, folder: str, files: Mapping[str, Any], who: Deliverer) -> bool:
        """Make a folder with files, which are there all or not at all. False: something of that name is there."""
        for _ in range(_TRIES):
            new = f"{_LEDGERS}/new.{who.topology}.{who.sink}.{uuid4()}"
            with suppress(FileNotFoundError):  # another one who opens the sink has swept it
                for name, said in files.items():
                    self._store.make(f"{new}/{name}".rpartition("/")[0])
                    self._write(f"{new}/{name}", said)
                self._store.make(folder.rpartition("/")[0])
                if self._store.rename(new, folder):
                    return True
                self._store.remove(new)
                return False
        raise SinkUnavailableError(
            f"{self}: expected {self._at(new)} to stay until it is moved, found it gone each of {_TRIES} times; it is "
            "tried again; if it stays so, see what deletes files there"
        )

    # --- a barrier --------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> Mapping[str, Counts]:
        opened = self._opened
        assert opened is not None, "open() comes before deliver()"
        assert self._record is not None
        name = f"b{delivery.barrier_id:08}.r{delivery.revision:05}"
        record = self._record.delivered(self._empty_record(opened.who), delivery.position)
        self._check_order(opened, self._record.position, delivery, name)
        staged, delivered = f"{opened.folder}/{name}", f"{opened.ledger}/delivered/{name}"
        try:
            counts = self._stage(opened, record, delivery, staged)
            self._check_newest(opened)
            if delivery.former is not None and name in self._kept:
                self._store.rename(delivered, f"{opened.ledger}/dead-{uuid4()}")
            moved = self._store.rename(staged, delivered)
        except (FileNotFoundError, SinkUnavailableError) as error:
            # A reply that was lost, another deliverer who took our folder away, or neither.
            if self._is_mine(opened, delivered):
                moved = True
            else:
                self._check_newest(opened)
                if isinstance(error, FileNotFoundError):
                    raise SinkUnavailableError(
                        f"{self}: expected {error} to stay while the sink is delivered to, found it gone; it is tried "
                        "again; if it stays so, see what deletes files there"
                    ) from error
                raise
        if not moved and not self._is_mine(opened, delivered):
            self._check_newest(opened)
            raise SinkUnavailableError(
                f"{self}: expected to move {self._at(staged)} to {self._at(delivered)}, found that it cannot be moved, "
                "though nobody else has opened the sink; the ledger is asked again"
            )
        self._record = record
        self._kept = [*(each for each in self._kept if each != name), name]
        self._publish(opened, name)
        for folder in self._forgotten(opened):
            with suppress(SinkUnavailableError):
                self._store.remove(folder)
        return counts

    def _check_order(self, opened: _Opened, here: Position | None, delivery: Delivery, name: str) -> None:
        self._check_newest(opened)  # or what another one has delivered would look like a fault
        if delivery.former is not None:
            if there := self._barriers(self._declared.targets.values()):
                raise SinkRefusedError(
                    f"{self}: expected no barriers, since the tables come whole and files are not compared with them, "
                    f"found {self._at(there)}; move away what is in the targets, and the next try delivers"
                )
            return
        check_follows(str(self), delivery.position, delivery.after, here)
        for target in self._declared.targets.values():
            if self._store.exists(f"{target}/{name}"):
                raise LedgerError(  # safety: no-data-ahead-of-ledger
                    f"{self}: expected no {self._at(target)}/{name}, since the ledger knows of nothing after "
                    f"{here or 'the beginning'}, found it; if the ledger was restored from a backup, put the newest "
                    "one back; else move what is newer away"
                )

    def _stage(self, opened: _Opened, record: LedgerRecord, delivery: Delivery, staged: str) -> dict[str, Counts]:
        """Write all that will be the barrier's folder."""
        self._store.remove(staged)  # of a try that failed
        files: dict[str, list[dict[str, Any]]] = {}
        counts: dict[str, Counts] = {}
        for table, rows in delivery.tables.items():
            target = self._declared.targets[table]
            self._store.make(f"{staged}/{target}")
            files[target], counts[table] = self._write_rows(rows, delivery.rows, f"{staged}/{target}")
            if self._sink.success_file:
                with self._store.create(f"{staged}/{target}/_SUCCESS"):
                    pass
        self._write(f"{staged}/{_RECORD}", self._said_of(record, opened.who, opened.number, delivery, files))
        return counts

    def _check_newest(self, opened: _Opened) -> None:
        """All that was written before is in the folder that the next one takes away."""
        if not self._store.exists(f"{opened.folder}/{_TOKEN}"):
            raise self._fenced(opened.number, opened.who)  # safety: newest-deliverer

    def _is_mine(self, opened: _Opened, delivered: str) -> bool:
        return bool((self._said(f"{delivered}/{_RECORD}") or {}).get("deliverer") == opened.number)

    def _publish(self, opened: _Opened, name: str) -> None:
        """Move each target's files to where readers look, as far as that was not done."""
        delivered = f"{opened.ledger}/delivered/{name}"
        for target in sorted(set(self._store.names(delivered) or []) - {_RECORD}):
            for _ in range(_TRIES):
                if not self._store.exists(f"{delivered}/{target}"):
                    break
                self._store.make(target)
                with suppress(FileNotFoundError):  # another process was faster, or a reader took the folder away
                    if not self._store.rename(f"{delivered}/{target}", f"{target}/{name}"):
                        raise LedgerError(  # safety: no-data-ahead-of-ledger
                            f"{self}: expected no {self._at(target)}/{name} before it is delivered, found it, made by "
                            "somebody else; move it away"
                        )

    # --- small files ------------------------------------------------------------------------------

    def _write(self, path: str, said: Any) -> None:
        with self._store.create(path) as stream:
            stream.write(json.dumps(said).encode())

    def _said(self, path: str) -> Any:
        """Return what such a file says; None: there is none."""
        try:
            return json.loads(self._store.read(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise LedgerError(
                f"{self}: expected JSON in {self._at(path)}, found something else ({error}); put it back as it was"
            ) from error


def _position_of(folder: str) -> Position:
    barrier, _, revision = folder[1:].partition(".r")
    return Position(int(barrier), int(revision))
