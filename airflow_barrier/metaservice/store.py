"""The MetaService: every step of the barrier protocol, durable, one transaction each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection, func, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.attempts import Attempts
from airflow_barrier.metaservice.audit import Audit
from airflow_barrier.metaservice.barriers import Barriers
from airflow_barrier.metaservice.commits import Publishing
from airflow_barrier.metaservice.cuts import Cuts
from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.deliveries import Deliveries
from airflow_barrier.metaservice.expiring import Expiry
from airflow_barrier.metaservice.leases import Leases
from airflow_barrier.metaservice.maintenance import Maintenance
from airflow_barrier.metaservice.moments import Moments
from airflow_barrier.metaservice.overviews import Overviews
from airflow_barrier.metaservice.recovering import Recovery
from airflow_barrier.metaservice.rehearsals import Rehearsals
from airflow_barrier.metaservice.resolving import Answers
from airflow_barrier.metaservice.revisions import Revisions
from airflow_barrier.metaservice.starts import Starts
from airflow_barrier.metaservice.topologies import Topologies
from airflow_barrier.metaservice.versions import EXPECTED

_R = TypeVar("_R")


class MetaService:
    """The store behind a deployment, for any number of processes and threads.

    ``url`` is an SQLAlchemy URL of an SQLite file (which is created and upgraded on first use) or of a PostgreSQL
    database (which ``airflow-barrier database migrate`` creates and upgrades). ``create`` overrides who may do that.
    ``new=False``: where there is no SQLite file, none is made, and calls raise MetaServiceMissingError (retryable).
    Nothing connects before the first call.

    What can be done stands in groups, one for each kind of rows; each method of a group is one transaction. All times
    are the database's, in UTC. ``actor`` is free text for the audit; it, ``request_key``, ``generation`` and ``line``
    are explained in ``docs/glossary.md``. Every method raises
    :class:`~airflow_barrier.protocol.errors.StoreUnavailableError` (retryable) when the database does not answer,
    :class:`~airflow_barrier.protocol.errors.SchemaVersionError` when it is of another version, and
    UnknownTopologyError or UnknownBarrierError for what is not there.

    >>> import tempfile
    >>> from airflow_barrier.protocol.topology import Job
    >>> meta = MetaService(f"sqlite:///{tempfile.mkdtemp()}/barrier.db")
    >>> meta.topologies.register("shopping", "dag", [Job("load", "dag", outlets=("shop.a",))], actor="me")
    1
    """

    def __init__(self, url: str, *, create: bool | None = None, new: bool = True) -> None:
        self._db = Database(url, create, new)
        #: what DAGs declare
        self.topologies = Topologies(self._db)
        #: where the first epoch of each job begins
        self.starts = Starts(self._db)
        self.barriers = Barriers(self._db)
        #: what of each source an epoch consists of
        self.cuts = Cuts(self._db)
        #: the work of jobs
        self.attempts = Attempts(self._db)
        #: from PRECOMMIT to COMMIT
        self.publishing = Publishing(self._db)
        #: barriers computed again
        self.revisions = Revisions(self._db)
        #: barriers that are computed, and never published
        self.rehearsals = Rehearsals(self._db)
        #: other files for the same rows
        self.maintenance = Maintenance(self._db)
        #: which snapshots readers get
        self.answers = Answers(self._db)
        #: what readers hold
        self.leases = Leases(self._db)
        #: systems that tables are delivered to, and what they have received
        self.deliveries = Deliveries(self._db)
        #: what pages show of many rows at once
        self.overviews = Overviews(self._db)
        #: barriers that nobody is to read any more
        self.expiry = Expiry(self._db)
        #: after a loss
        self.recovery = Recovery(self._db)
        #: when what happened
        self.moments = Moments(self._db)
        #: what happened
        self.audit = Audit(self._db)

    @property
    def url(self) -> str:
        """The database's URL, without password and options."""
        return self._db.url

    def check(self) -> str:
        """One sentence about what is there; raises if it cannot be used."""
        count = self._db.read(lambda c: c.execute(select(func.count()).select_from(schema.topology)).scalar_one())
        return f"MetaService {self.url}: schema version {EXPECTED}, {count} topologies."

    def now(self) -> datetime:
        """The database's clock (UTC), by which leases and retention go."""
        return self._db.read(lambda c: c.execute(select(schema.DatabaseNow())).scalar_one())

    def look(self) -> AbstractContextManager[None]:
        """Let all reads of this thread see one state until the end of the block, in one transaction, which ends before
        each write.

        What the block learns is of one moment. So it asks nothing but the MetaService: who compares with tables or
        files looks at those first.

        >>> with MetaService("sqlite:////folder/barrier.db").look():  # doctest: +SKIP
        ...     next_step(...)
        """
        return self._db.look()

    def query(self, work: Callable[[Connection], _R]) -> _R:
        """Run ``work`` on what is in the database beside what is ours, in a read-only transaction."""
        return self._db.read(work)

    def open(self) -> None:
        """See that the database is there, and of this version."""
        self._db.open()

    def close(self) -> None:
        """Close what connections are kept."""
        self._db.close()
