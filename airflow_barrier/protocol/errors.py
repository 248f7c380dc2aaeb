"""Every error of the package. One root, and two mix-ins that say whether trying again can help.

Each error carries one message that says what was expected, what was found and what to do next, and
nothing else, so that it survives pickling between processes.
"""

from __future__ import annotations

from typing import ClassVar


class BarrierError(Exception):
    """The root of everything this package raises on purpose."""

    retryable: ClassVar[bool] = False


class Retryable(BarrierError):
    """Trying the same call again, as it is, can succeed: Airflow's retries are worth using."""

    retryable = True


class Terminal(BarrierError):
    """Trying again changes nothing until a person or another task has done something."""

    retryable = False


# --- topology -------------------------------------------------------------------------------------


class TopologyError(Terminal):
    """A topology that cannot be registered."""


class SecondWriterError(TopologyError):
    """Two jobs declare the same table as an outlet."""


class CycleError(TopologyError):
    """Jobs feed each other in a circle, so no order of processing exists."""


class UnknownTableError(TopologyError):
    """A table is read that no job of the topology writes, or asked for although it is in no topology."""


class JobWithoutOutletsError(TopologyError):
    """A job that writes nothing has no part in a barrier."""


class DuplicateJobError(TopologyError):
    """Two jobs of one topology bear the same name."""


class TableClaimedError(TopologyError):
    """A table already belongs to another topology."""


class StillReadError(TopologyError):
    """A job leaves whose tables other jobs still read."""


class WithdrawnError(Terminal):
    """A job that a person took out of the topology asks to take part."""


class StartFromError(Terminal):
    """A job joins with tables that hold rows, and nobody has said which part of its inlets is in them."""


class UnknownTopologyError(Terminal):
    """No topology of that name has been registered."""


# --- barriers and attempts ------------------------------------------------------------------------


class IllegalTransitionError(Terminal):
    """A barrier, table or attempt was asked to go from a state to one that may not follow it."""


class UnknownBarrierError(Terminal):
    """No such barrier, or none that this run opened."""


class BarrierOrderError(Terminal):
    """A barrier's timestamp is not after the newest one: a clock went back, or runs start out of order."""


class TriggeredRunError(Terminal):
    """A run that somebody triggered has nothing to do, or would open a barrier that nobody can complete."""


class HeadMovedError(Retryable):
    """Another process opened or aborted a barrier between our look and our write: look again."""


class TooManyOpenBarriersError(Retryable):
    """`max_open_barriers` are open: the next may open once one of them is committed or aborted."""


class BarrierAbortedError(Terminal):
    """The barrier was given up; its epoch joins the next barrier's."""


class AlreadyCommittedError(Terminal):
    """The barrier is COMMITTING or later: its tables can only be changed by a revision."""


class NotPrecommitError(Retryable):
    """A barrier (or the one before it) is not PRECOMMIT yet, so it cannot be committed yet."""


class CheckFailedError(Retryable):
    """A check has found rows in what a barrier has staged, so that it is not committed."""


class NotProcessedError(Terminal):
    """A table is not PROCESSED although the task of its job has ended (marked success by hand? skipped?)."""


class NotReadableYetError(Retryable):
    """The barrier that a reader asks for has not come as far as the reader's level wants."""


class ExpiredBarrierError(Terminal):
    """The barrier that a reader asks for is no longer readable: its retention is over."""


class LeaseLostError(Retryable):
    """A reader's lease has ended, and no renewal brings it back: what it held may be deleted. Read anew."""


class StaleAnswerError(Retryable):
    """The newest barrier is older than a reader allows for."""


class WentBackError(Terminal):
    """A session would read less than it has read, although nothing was rolled back."""


class FencedAttemptError(Terminal):
    """Another attempt took this one's place, or it was given up; nothing it does counts any more."""


class VoidedAttemptError(Retryable):
    """The attempt's inputs or base were staged anew, so what it staged does not count. A new attempt mends it."""


class NotOwnerError(Terminal):
    """A DAG asks for, or reports, the work of a job that another DAG owns."""


class AttemptTakenError(Retryable):
    """Another process started the attempt between our look and our write: ask for one of our own."""


class NotClosedError(Retryable):
    """The Spark work ended without a closing record: what it staged may be a half. A new attempt mends it."""


class UnprovenFileError(Retryable):
    """A file between worker and Spark driver is damaged, or lacks their attempt's nonce. A new attempt mends it."""


# --- revisions ------------------------------------------------------------------------------------


class RevisionRefusedError(Terminal):
    """A revision that cannot be done as it is asked for; nothing was staged. The message says what would work."""


class RehearsalRefusedError(Terminal):
    """A rehearsal that cannot be held as things are; nothing was staged. The message says what would work."""


class UnknownRevisionError(Terminal):
    """The topology has no revision of that number, or the barrier was not computed in it."""


class RevisionEndedError(Terminal):
    """The revision is decided, published or cancelled: nothing more is computed for it."""


class RevisionNotStagedError(Retryable):
    """Some barriers of a revision are not computed again yet, so it cannot be published yet."""


class GatedError(Retryable):
    """No barrier opens, and no job begins on tables that are being swapped, until a revision is published."""


# --- tables ---------------------------------------------------------------------------------------


class MissingTableError(Terminal):
    """A declared table is not in the catalog."""


class StagedTableError(Retryable):
    """A staged table is not what it should be (branch, ancestry or stamp). A new attempt can mend it."""


class ForeignWriteError(Terminal):
    """Somebody else moved a table's `main`; it is never overwritten."""


class RefTakenError(ForeignWriteError):
    """A branch or tag that somebody else made bears a name that is ours."""


class BarrierBlockedError(ForeignWriteError):
    """The barrier is BLOCKED: somebody else moved a table after the decision to commit, and a person decides."""


class SnapshotMissingError(Terminal):
    """A snapshot that is needed is no longer in the table's metadata."""


class SchemaChangedError(Terminal):
    """A table's columns are no longer those that a barrier was computed with, so it cannot be computed again."""


class CompactionError(Terminal):
    """Files of some tables could not be rewritten; their rows are what they were, and no barrier waits for it."""


class ExpiryError(Retryable):
    """Snapshots of some tables could not be taken out; nobody begins to read them, and the next expiry takes them."""


class InexactChangesError(Terminal):
    """The changes between two snapshots cannot be told exactly, so they are not told at all."""


class NotAppendOnlyError(Terminal):
    """`appends` was asked for an epoch that also updated or deleted rows."""


# --- reading --------------------------------------------------------------------------------------


class SqlSyntaxError(Terminal):
    """SQL text that cannot be parsed; the message says where, and why."""


class UnknownDialectError(Terminal):
    """SQL of a dialect that consistent reading does not know."""


class NotAReadError(Terminal):
    """A statement that writes, or is no query at all, where a consistent answer is asked for."""


class UnpinnableError(Terminal):
    """A query names a table in a way that cannot be pinned to a barrier: by time travel of its own, or at run time."""


# --- sources, jobs, servers -----------------------------------------------------------------------


class SourceDataError(Terminal):
    """Input that cannot be read, or does not have the declared schema."""


class UndeclaredTableError(Terminal):
    """A job uses a table, or an external source, that it does not declare."""


class SilentOutletError(Terminal):
    """A job ended without writing to an outlet and without saying that the epoch leaves it unchanged."""


class ChangedOutletError(Terminal):
    """A job wrote to an outlet of which it also said that the epoch leaves it unchanged."""


class WapDisabledError(Terminal):
    """A table of an unchanged job lacks `write.wap.enabled`, so it cannot be sent to a branch."""


class UnguardedError(Terminal):
    """An unchanged job ran on a Spark that is too old, or without the guard: what it touched is unknown."""


class SpecError(Terminal):
    """An epoch spec that is missing, damaged, or of another version."""


class UnreadableCodeError(Retryable):
    """A file that a job runs is there, but cannot be read: once it can be, trying again succeeds."""


# --- sinks ----------------------------------------------------------------------------------------


class SinkUnavailableError(Retryable):
    """A sink does not answer, or went away in the middle. What was delivered its ledger says, to the next try."""


class SinkRefusedError(Terminal):
    """A sink cannot take what is declared: its address, rights, a target, a column, a type or a key is wrong."""


class RowRefusedError(Terminal):
    """A sink does not take a row. Nothing of its barrier was delivered; tables and other sinks go on."""


class TargetChangedError(Terminal):
    """Others have changed rows in a sink that were delivered, so that changes of them do not fit any more."""


class FencedDelivererError(Retryable):
    """Another deliverer has opened the sink; nothing that this one does counts any more."""


class LedgerError(Terminal):
    """A sink's ledger is another topology's, or contradicts what the MetaService or the target says."""


class SinkBehindError(Terminal):
    """A barrier that a sink needs next can no longer be read: it has to be loaded anew."""


class UnknownSinkError(Terminal):
    """The topology has no sink of that name."""


class SinkClaimedError(TopologyError):
    """A DAG declares a sink that another DAG delivers to."""


class SinkTakenError(Retryable):
    """Another task has begun to deliver to the sink between our look and our write: look again."""


# --- Airflow --------------------------------------------------------------------------------------


class AirflowUnavailableError(Retryable):
    """Airflow's API server does not answer, or not with sense."""


class AirflowRefusedError(Terminal):
    """Airflow does not do what it is asked: who asks may not, or the DAG cannot."""


class UnknownRunError(Terminal):
    """No such DAG, or no such run of it."""


class RunActiveError(Retryable):
    """A run that is to be done again is still queued or running: clearing it now would kill what it does."""


# --- deployments ----------------------------------------------------------------------------------


class ConfigurationError(Terminal):
    """A connection or an argument that cannot be used as given."""


class SchemaVersionError(Retryable):
    """The MetaService database has the schema of another version of this package.

    While a deploy goes through, that is so for a while: a retry may find the database migrated, or another worker.
    """


class LostStateError(Terminal):
    """The MetaService knows less than the tables: it was lost, restored from an old backup, or is another one."""


class JournalError(Terminal):
    """The journal beside the tables is missing, damaged, or contradicts the MetaService."""


class WireFormError(Terminal):
    """A journal, a spec, a trigger or a column holds something else than what its record is written as."""


class StoreUnavailableError(Retryable):
    """The MetaService database does not answer."""


class MetaServiceMissingError(StoreUnavailableError):
    """There is no MetaService database yet, or none that this host can see."""


class WaitTimeoutError(Retryable):
    """A task's wait outlasted its time."""


class OutcomeUnknownError(StoreUnavailableError):
    """The MetaService database went away in the middle of a commit, and does not say whether it happened."""


class CatalogUnavailableError(Retryable):
    """The table catalog, or the storage under it, does not answer."""


class CatalogRefusedError(Retryable):
    """The table catalog refuses the connection's credentials: once a person has mended them, trying again succeeds."""


class SourceUnavailableError(Retryable):
    """The storage that an external source lies in does not answer."""


class SparkUnavailableError(Retryable):
    """The Spark server does not answer, or went away in the middle."""
