"""What a job sees of the epoch it processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.sources.port import DeadLetters, Tables
from airflow_barrier.spark._iceberg import rows_at
from airflow_barrier.spark.applying import apply_changes
from airflow_barrier.spark.changes import appends, changes
from airflow_barrier.spark.delta_join import delta_join
from airflow_barrier.spark.identifiers import table_name
from airflow_barrier.spark.profile import take_back
from airflow_barrier.spark.spec import EpochSpec
from airflow_barrier.spark.undeclared import source_named, undeclared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_barrier.sources.port import Source

log = logging.getLogger(__name__)


class Epoch:
    """One epoch of one job: its input, pinned, and the names to write its output under.

        @epoch_job
        def amount(epoch):
            delta = epoch.changes("shop.shopping").groupBy("userId").agg(F.sum(F.expr("amount * _weight")).alias("d"))
            ...
            delta.mergeInto(epoch.target("shop.user_amount"), ...).merge()

    Tables are named ``namespace.table``, as in the job's declaration; a table that is not declared there raises
    :class:`~airflow_barrier.protocol.errors.UndeclaredTableError`. Every read is pinned to a snapshot, so a replay
    sees the same rows: take the time from :attr:`timestamp` and randomness from :attr:`seed`, never from
    ``current_timestamp()`` or ``rand()``.
    """

    def __init__(self, spark: SparkSession, spec: EpochSpec) -> None:
        self.spark = spark
        self._spec = spec
        self._unchanged: set[str] = set()
        self._small = bool(spec.conf)

    # --- which epoch ------------------------------------------------------------------------------

    @property
    def barrier_id(self) -> int:
        """The barrier that ends this epoch."""
        return self._spec.barrier_id

    @property
    def timestamp(self) -> datetime:
        """The barrier's timestamp, in UTC: this epoch's "now"."""
        return self._spec.timestamp

    @property
    def previous_timestamp(self) -> datetime | None:
        """The timestamp of the barrier before, in UTC; None in the first epoch."""
        return self._spec.previous_timestamp

    @property
    def seed(self) -> int:
        """The same number in every attempt of this job at this barrier, for ``F.rand(epoch.seed)`` and the like."""
        return self._spec.seed

    # --- input ------------------------------------------------------------------------------------

    def appends(self, table: str) -> DataFrame:
        """The rows that this epoch added to ``table``.

        Raises :class:`~airflow_barrier.protocol.errors.NotAppendOnlyError` if it also updated or deleted rows: use
        :meth:`changes` then.
        """
        inputs, previous = self._inlet(table)
        return appends(self.spark, self._name(table), previous, inputs, self._spec.deltas.get(table))

    def changes(self, table: str) -> DataFrame:
        """Return what this epoch changed in ``table``: its rows with ``_change_type`` and ``_weight`` (+1 came, -1
        went).

        An updated row is there twice, so ``sum(x * _weight)`` takes back what no longer holds. Raises
        :class:`~airflow_barrier.protocol.errors.InexactChangesError` where the changes cannot be told exactly.
        """
        inputs, previous = self._inlet(table)
        return changes(self.spark, self._name(table), previous, inputs, self._spec.deltas.get(table))

    def read(self, table: str) -> DataFrame:
        """``table`` as of this barrier. Of the job's own outlet: what this attempt has staged so far."""
        if table in self._spec.bases:
            return self.spark.table(self.target(table))
        return self._whole(table, self._inlet(table)[0])

    def previous(self, table: str) -> DataFrame:
        """``table`` as of the barrier before. Of the job's own outlet: the state that this epoch builds on."""
        if table in self._spec.bases:
            return self._at(table, self._spec.bases[table])
        return self._whole(table, self._inlet(table)[1])

    def delta_join(self, left: str, right: str, on: str | list[str], how: str = "inner") -> DataFrame:
        """The changes of ``left JOIN right``, from the two tables' deltas and their shared previous state.

        ``on``: names of columns that both have; ``how``: ``inner`` or ``left``. The result carries ``_change_type`` and
        ``_weight`` like :meth:`changes`. For sides that need a selection or filter first, call
        :func:`airflow_barrier.spark.delta_join.delta_join` with frames.
        """
        return delta_join(
            self.previous(left), self.changes(left), self.previous(right), self.changes(right), on=on, how=how
        )

    def source(self, name: str, table: str | None = None) -> DataFrame:
        """The epoch's records of an external source: exactly those of the barrier's cut. ``table``: of a source that
        has several, which may stand behind the name, too: ``shop_db.public.orders``.
        """
        spec = self._spec
        if table is None:
            name, table = source_named(name, spec.externals) or (name, None)
        source = self._source(name)
        if isinstance(source, Tables):
            source = source.of_table(table)
        elif table is not None:
            raise undeclared(spec.job, "external source", f"{name}.{table}", "inlets", spec.externals)
        return source.load(
            self.spark,
            spec.cuts[name],
            spec.previous_timestamp,
            spec.timestamp,
            spec.catalog,
            _delta,
            spec.secrets.get(name, {}),
        )

    def dead_letters(self, name: str) -> DataFrame:
        """Return the epoch's records that do not decode, of an external source that has a table of dead letters, with
        the table's columns:

            topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY,
            headers ARRAY<STRUCT<key: STRING, value: BINARY>>, reason STRING

        They are appended to the table when the job has run, so that only an unchanged job, which is not run from here,
        writes them itself. Raises :class:`~airflow_barrier.protocol.errors.ConfigurationError` for a source without.
        """
        source = self._source(name)
        if not isinstance(source, DeadLetters) or source.dead_letters is None:
            raise ConfigurationError(
                f"job {self._spec.job}: expected source {name} to have a table of dead letters, found none; declare it "
                "with dead_letters='namespace.table'"
            )
        spec = self._spec
        return source.letters(self.spark, spec.cuts[name], spec.timestamp, spec.secrets.get(name, {}))

    def _source(self, name: str) -> Source:
        from airflow_barrier.sources import source_of

        spec = self._spec
        if name not in spec.externals:
            raise undeclared(spec.job, "external source", name, "inlets", spec.externals)  # safety: undeclared-external
        return source_of(spec.externals[name])

    # --- output -----------------------------------------------------------------------------------

    def target(self, table: str) -> str:
        """The quoted name to write ``table`` under: its attempt branch. For Spark's own writers and for SQL."""
        self._check_outlet(table)
        return self._name(table, f"branch_{self._spec.branch}")

    def apply(self, changes: DataFrame, table: str, key: str | Sequence[str]) -> None:
        """Put changes on outlet ``table``, so that its rows are those of where the changes come from:

            epoch.apply(epoch.source("shop_db", "public.orders"), "shop.orders", key="id")

        ``changes`` have ``_weight``, as :meth:`changes` and sources of changes give them; ``key``: columns that tell
        rows apart, of a database's table those of its replica identity. Columns go to those of their name. An epoch
        without changes leaves the table unchanged. Raises
        :class:`~airflow_barrier.protocol.errors.ConfigurationError` where the table lacks a column, or changes lack
        their key.
        """
        key = [key] if isinstance(key, str) else list(key)
        if not apply_changes(changes, table, self.target(table), key):
            self.unchanged(table)

    def unchanged(self, table: str) -> None:
        """Say that this epoch adds nothing to outlet ``table``. Absence of output is never taken as that."""
        self._check_outlet(table)
        self._unchanged.add(table)

    @property
    def declared_unchanged(self) -> frozenset[str]:
        """The outlets that the job called :meth:`unchanged`."""
        return frozenset(self._unchanged)

    # --- how --------------------------------------------------------------------------------------

    def _name(self, table: str, *suffix: str) -> str:
        return table_name(self._spec.catalog, table, *suffix)

    def _whole(self, inlet: str, snapshot_id: int | None) -> DataFrame:
        """All rows of an inlet. From now on the epoch is no small one if the profile was chosen without them."""
        if self._small and inlet in self._spec.large:
            take_back(self.spark)
            self._small = False
            log.info("job %s reads all of %s, and goes on with Spark's own conf", self._spec.job, inlet)
        return self._at(inlet, snapshot_id)

    def _at(self, table: str, snapshot_id: int | None) -> DataFrame:
        return rows_at(self.spark, self._name(table), snapshot_id)

    def _inlet(self, table: str) -> tuple[int | None, int | None]:
        """The snapshots of an inlet at this barrier and at the one before."""
        if table not in self._spec.inputs:
            raise undeclared(self._spec.job, "table", table, "inlets", self._spec.inputs)  # safety: undeclared-inlet
        return self._spec.inputs[table], self._spec.previous.get(table)

    def _check_outlet(self, table: str) -> None:
        if table not in self._spec.bases:
            raise undeclared(self._spec.job, "table", table, "outlets", self._spec.bases)  # safety: undeclared-outlet


def _delta(
    spark: SparkSession, table: str, start: int | None, end: int | None, mode: Literal["appends", "changes"]
) -> DataFrame:
    """Return what sources over tables are given, since they stand below this room."""
    return (appends if mode == "appends" else changes)(spark, table, start, end)


#: What processes an epoch: an :class:`~airflow_barrier.spark.job.EpochJob`, an SQL job, or any function of an epoch.
Job = Callable[[Epoch], Any]
