"""The epoch spec: everything that a Spark driver is told about its attempt, as a file beside the warehouse.

Spark's conf carries only the file's URI and digest (:data:`SPEC_URI`, :data:`SPEC_DIGEST`), so nothing secret shows
in Spark's UI. What enters a source is in the file by a key that stands in the conf (:data:`SPEC_KEY`), so that neither
is enough. When the job has written everything, the driver leaves a :class:`ClosingRecord` at ``closing_uri``.

Whatever worker and driver tell each other by files after that bears the attempt's nonce, which the spec tells the
driver (:func:`signed`, :func:`proven`): the files' names can be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from secrets import token_hex
from typing import Any

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.errors import SpecError, UnprovenFileError, WireFormError
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.protocol.records import Cut, StagedTable
from airflow_barrier.protocol.snapshots import TableDelta
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.spark.corrections import Correction

SPEC_URI = "spark.airflow_barrier.spec.uri"
SPEC_DIGEST = "spark.airflow_barrier.spec.digest"
#: Spark's pages and logs leave out the values of names that have "secret" in them.
SPEC_KEY = "spark.airflow_barrier.spec.secret"
_VERSION = 3

#: Tells at which snapshots a branch is on tables, as the catalog itself says it: those that have the branch.
Heads = Callable[[Sequence[str], str], Mapping[str, int]]


@dataclass(frozen=True)
class EpochSpec:
    """The inputs of one attempt and the places that it writes to.

    ``timestamp`` and ``previous_timestamp`` (None at barrier 1) are UTC. ``inputs`` and ``previous``: inlet ->
    snapshot at this barrier and at its predecessor; ``bases``: outlet -> snapshot it builds on. ``catalog`` is the name
    of the catalog in Spark. ``seed`` makes random functions repeatable. ``sql`` is the statement of an SQL job.
    ``corrections``: what a revision runs instead of the job, whichever that is; none: the job runs. ``nonce`` is the
    attempt's: it is known to its worker and its driver, and is never to be shown. ``deltas``: inlet -> what its
    metadata tell of its changes; the driver asks Spark about the others. ``conf``: Spark's, of the epoch's profile,
    where no user has set it; not for an epoch that reads one of the inlets ``large`` whole.
    """

    job: str
    topology: str
    barrier_id: int
    revision: int
    attempt_id: int
    incarnation: str
    timestamp: datetime
    previous_timestamp: datetime | None
    catalog: str
    inputs: Mapping[str, int | None]
    previous: Mapping[str, int | None]
    bases: Mapping[str, int | None]
    externals: Mapping[str, ExternalSource]
    cuts: Mapping[str, Cut]
    closing_uri: str
    seed: int
    nonce: str = field(repr=False)
    sql: str | None = None
    corrections: tuple[Correction, ...] = ()
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    deltas: Mapping[str, TableDelta] = field(default_factory=dict, repr=False)
    conf: Mapping[str, str] = field(default_factory=dict)
    large: tuple[str, ...] = ()

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.topology, self.barrier_id, self.revision, self.attempt_id, self.incarnation)

    @property
    def branch(self) -> str:
        return self.stamp.branch

    def dumps(self, key: str | None = None) -> str:
        """The file's text; its secrets only who has ``key`` can read, which is of :func:`new_key` and serves once.
        Without one they are left out.
        """
        data = encode(replace(self, secrets={}))
        data["secrets"] = _covered(json.dumps(self.secrets).encode(), key).hex() if key and self.secrets else ""
        return sealed(data)

    @classmethod
    def loads(cls, text: str, digest: str | None = None, key: str | None = None) -> EpochSpec:
        """The spec again; with ``digest`` (of :func:`digest_of`) only if it is the very same text. Without ``key`` it
        has no secrets.

        Raises :class:`SpecError`.
        """
        data = unsealed(text, digest, "epoch spec")
        secrets = data["secrets"]
        data["secrets"] = json.loads(_covered(bytes.fromhex(secrets), key)) if key and secrets else {}
        return decode(cls, data)


def new_key() -> str:
    return token_hex(32)


def _covered(data: bytes, key: str) -> bytes:
    """``data``, or what it was: every bit is turned where the key's stream has one, which is as long as the data.

    A stream of a hash that may be of any length (SHAKE256, FIPS 202) hides data as long as its key serves once.
    """
    stream = hashlib.shake_256(bytes.fromhex(key)).digest(len(data))
    return bytes(one ^ other for one, other in zip(data, stream, strict=True))


@dataclass(frozen=True)
class ClosingRecord:
    """The record of what an attempt staged, by its driver after the last write: the proof that it did not die
    half-way.
    """

    attempt_id: int
    staged: Mapping[str, StagedTable]

    def dumps(self, nonce: str) -> str:
        """The file's text, which bears the attempt's ``nonce``."""
        return signed(encode(self), nonce)

    @classmethod
    def loads(cls, text: str, attempt_id: int, nonce: str, where: str) -> ClosingRecord:
        """The record of attempt ``attempt_id`` again; ``where`` names attempt and file in errors.

        Raises UnprovenFileError.
        """
        data = proven(text, nonce, where)
        found = data.get("attempt_id")
        if found != attempt_id:
            raise UnprovenFileError(  # safety: record-of-this-attempt
                f"{where}: expected the record of attempt {attempt_id}, found that of another one; the next try begins "
                "a new attempt"
            )
        expected = "for each table its staged snapshot, or that it is unchanged"
        try:
            record = decode(cls, data)
        except WireFormError as error:
            raise damaged(where, expected) from error
        if any(name != staged.table for name, staged in record.staged.items()):
            raise damaged(where, expected)  # safety: record-names-its-tables
        return record


def sealed(data: Mapping[str, Any]) -> str:
    """The text of a file that tells a driver its work, as :func:`unsealed` reads it."""
    return json.dumps({"version": _VERSION, **data}, indent=1, sort_keys=True)


def unsealed(text: str, digest: str | None, what: str) -> dict[str, Any]:
    """Return what the file says that its task wrote; with ``digest`` (of :func:`digest_of`) only if it is the very
    same text.

    ``what`` names it in errors. Raises SpecError.
    """
    if digest is not None and digest_of(text) != digest:
        raise SpecError(  # safety: spec-digest
            f"{what}: expected digest {digest}, found {digest_of(text)}; the file was changed after the task wrote it: "
            "clear the task, which writes a new one"
        )
    data: dict[str, Any] = json.loads(text)
    found = data.pop("version", None)
    if found != _VERSION:
        raise SpecError(  # safety: spec-version
            f"{what}: expected version {_VERSION}, found {found}; run the same version of airflow-provider-barrier on "
            "the Airflow worker and in the Spark driver"
        )
    return data


def signed(data: Mapping[str, Any], nonce: str) -> str:
    """A file's text that :func:`proven` believes."""
    return json.dumps({**data, "nonce": nonce}, indent=1, sort_keys=True)


def proven(text: str, nonce: str, where: str) -> dict[str, Any]:
    """Return what a file says whose writer knew the attempt's ``nonce``; ``where`` names attempt and file in errors.

    Raises UnprovenFileError, which shows nothing of the file, nor the nonce.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        found = str(data.pop("nonce", ""))
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise damaged(where, "a JSON object") from error
    # an attempt of before the upgrade that brought nonces has none, and no file is believed of it
    if not nonce or not hmac.compare_digest(found.encode(errors="replace"), nonce.encode()):
        raise UnprovenFileError(  # safety: file-bears-the-nonce
            f"{where}: expected the attempt's nonce, which only its worker and its driver know, found "
            f"{'another one' if found else 'none'}: somebody else wrote the file. Find out who may write to that "
            "folder; the next try begins a new attempt"
        )
    return data


def damaged(where: str, expected: str) -> UnprovenFileError:
    return UnprovenFileError(
        f"{where}: expected {expected}, found something else: the file is damaged, or somebody else wrote it; the next "
        "try begins a new attempt"
    )


def digest_of(text: str) -> str:
    """SHA-256 of a spec's text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()
