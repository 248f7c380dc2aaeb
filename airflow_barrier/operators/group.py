"""The group that puts a DAG's part of a topology together."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID
from airflow_barrier.operators._at import several
from airflow_barrier.operators._binding import Binding
from airflow_barrier.operators._conf import correction_fields, rehearsal_field
from airflow_barrier.operators._inlets import said_by, take_out
from airflow_barrier.operators._waiting import WAIT_TIMEOUT
from airflow_barrier.operators.commit import AbortBarrierOperator, CommitBarrierOperator
from airflow_barrier.operators.job import as_job, bind, check_batch, check_sql, could_be_job, task_of
from airflow_barrier.operators.processed import processed_asset
from airflow_barrier.operators.start import StartBarrierOperator
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.revisions import OnBackfill
from airflow_barrier.protocol.starting import StartFrom, declared_start
from airflow_barrier.protocol.table import Table
from airflow_barrier.protocol.topology import Fragment, Job, Topology, check_names

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from airflow_barrier.operators.check import CheckOperator
    from airflow_barrier.operators.deliver import DeliverOperator
    from airflow_barrier.sinks.port import Sink
    from airflow_barrier.sources.port import Source


class BarrierGroup(TaskGroup):
    """A task group whose jobs process one barrier per run: ``start >> jobs >> commit``.

        with DAG("shopping", schedule="@daily", start_date=START, catchup=True, max_active_runs=4):
            with BarrierGroup("shopping") as barrier:
                barrier.job(load, inlets=[Files("s3://in/shopping/", schema="...")], outlets=["shop.shopping"])
                barrier.job(amount, inlets=["shop.shopping"], outlets=["shop.user_item_amount"])

    A task in the block that nobody hands to :meth:`job` is one by its own words: Airflow's ``inlets`` and ``outlets``,
    in which a table is ``"namespace.table"``, a :class:`~airflow_barrier.tables.Table` or its asset
    (:func:`~airflow_barrier.operators.commit.table_asset`), and the placeholders of an SQL job.

        with DAG("shopping", ...), BarrierGroup("shopping"):
            SparkSubmitOperator(task_id="load", ..., outlets=[Asset("barrier://shopping/shop.shopping")])
            SparkEpochOperator(task_id="amount", sql="INSERT INTO {target:shop.amount} TABLE {appends:shop.shopping}")

    Other assets declare nothing. Events of tables come from the commit alone, so their assets leave the task's outlets.
    A task without tables has to stand before or after a job or the commit (``check >> barrier.commit``); Spark work
    needs tables. Raises :class:`~airflow_barrier.protocol.errors.ConfigurationError` for a task that takes no part.

    Edges between jobs follow from their tables. The fragment is checked when the ``with`` block ends, so that a DAG
    with a topology that cannot work shows as an import error; raises
    :class:`~airflow_barrier.protocol.errors.TopologyError`.

    :param topology: the topology's name, and the group's id.
    :param barrier_conn_id: the deployment.
    :param member: another DAG opens and commits; the jobs here join its barriers by their runs' timestamps.
    :param on_failure: when a job has failed for good, or Airflow has skipped it: ``block`` (the barrier waits for a
        person or a clear, and the run fails) or ``abort`` (it is given up, with every later uncommitted one).
    :param open_manual_runs: let runs that nobody scheduled open barriers also where the DAG catches up.
    :param backfill: the answer to a backfill, in Airflow, of days that are committed. ``own``: a revision corrects
        them, if jobs of this DAG alone are computed again; else the start task logs what would be, and skips the run.
        ``revise``: a revision, also of other DAGs' jobs, whose runs are woken. ``explain``: nothing is ever changed.
    :param announce_processed: each table gets an asset event when it is PROCESSED at a barrier, by which DAGs of other
        members may run (:func:`~airflow_barrier.operators.processed.processed_asset`). A member's run that was
        started by such events belongs to the barrier that its partition names.
    :param freshness: readers are to have nothing of these tables that is older. What is late against it is shown
        (`docs/delay.md`); nothing is done or refused.
    :param wait_timeout: how long a try may wait, from its beginning; then it fails, and says what for.
    :param group_options: whatever else a TaskGroup takes, such as ``default_args`` or ``tooltip``.
    """

    def __init__(
        self,
        topology: str,
        *,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        member: bool = False,
        on_failure: str = "block",
        open_manual_runs: bool = False,
        backfill: str = OnBackfill.OWN.value,
        announce_processed: bool = False,
        freshness: timedelta | None = None,
        wait_timeout: timedelta = WAIT_TIMEOUT,
        **group_options: Any,
    ) -> None:
        if on_failure not in ("block", "abort"):
            raise ConfigurationError(f"on_failure: expected 'block' or 'abort', found {on_failure!r}")
        if backfill not in [each.value for each in OnBackfill]:
            raise ConfigurationError(f"backfill: expected 'own', 'revise' or 'explain', found {backfill!r}")
        if member and (on_failure, open_manual_runs, backfill) != ("block", False, OnBackfill.OWN):
            raise ConfigurationError(
                f"topology {topology}: on_failure, open_manual_runs and backfill belong to the DAG that opens and "
                "commits, not to a member"
            )
        if announce_processed:
            from airflow_barrier.hooks.features import Feature, need

            need(Feature.PARTITION_KEYS, f"topology {topology}: announce_processed=True")
        _check_freshness(topology, freshness)
        super().__init__(group_id=topology, **group_options)
        self.topology = topology
        self.barrier_conn_id = barrier_conn_id
        self.member = member
        self.on_failure = on_failure
        self.open_manual_runs = open_manual_runs
        self.backfill = backfill
        self.announce_processed = announce_processed
        self.freshness = freshness
        self.wait_timeout = wait_timeout
        self._jobs: list[tuple[BaseOperator, Job]] = []
        self._tables: list[Table] = []
        self._batches: dict[str, int] = {}
        self.deliveries: list[DeliverOperator] = []
        self._checks: list[CheckOperator] = []
        self._closed = False
        self.start: StartBarrierOperator | None = None
        self.commit: CommitBarrierOperator | None = None
        self.abort: AbortBarrierOperator | None = None

    def job(
        self,
        operator: Any,
        *,
        inlets: Sequence[str | Table | Source] = (),
        outlets: Sequence[str | Table] = (),
        name: str | None = None,
        start_from: StartFrom | None = None,
        freshness: timedelta | None = None,
        batch_barriers: int = 1,
    ) -> Any:
        """Make ``operator`` the job that turns ``inlets`` into ``outlets``, and return it.

        It may be a :class:`~airflow_barrier.operators.epoch.SparkEpochOperator`, or any operator that hands conf to a
        Spark job, whose code need not know of barriers (`docs/unchanged-jobs.md`), or what calling a function with
        ``@task.pyspark`` returned.

        Inlets are tables of the topology (``namespace.table``) or external sources; outlets are tables that the job
        writes. Outlets given as :class:`~airflow_barrier.tables.Table`, with their columns, are made where they
        are not there when the job joins. The operator's own ``inlets`` and ``outlets`` declare nothing here: they count
        for a task that is not handed over. ``name`` is the job's in the topology; default: the task id inside this
        group. Raises :class:`ConfigurationError` for an operator that hands no conf to Spark, and after the group's
        block.

        ``start_from``: what of its inlets is in the outlets already when the job joins (`docs/adopting.md`):
        ``earliest`` (nothing), ``latest`` (all, up to the barrier that it joins with), a datetime with a time zone, or
        a position of each inlet by its name. Outlets that hold rows need it; empty ones begin with the earliest.
        ``history``: the job waits, and joins once a revision has computed its (empty) outlets at the barriers of the
        past.

        ``freshness``: of these outlets, if it is another than the group's.

        ``batch_barriers``: the task may go on with the epochs of later open barriers, so many in all, in the Spark job
        that it has started; for a SparkEpochOperator (`docs/catching-up.md`).
        """
        task = task_of(operator)
        if self._closed:
            raise ConfigurationError(
                f"topology {self.topology}, task {task.task_id}: expected barrier.job(...) within the block of its "
                "group, found it after the block; indent it"
            )
        self._add(task, inlets, outlets, name, start_from, freshness, batch_barriers)
        return operator

    def _add(
        self,
        task: Any,
        inlets: Sequence[str | Table | Source],
        outlets: Sequence[str | Table],
        name: str | None = None,
        start_from: StartFrom | None = None,
        freshness: timedelta | None = None,
        batch_barriers: int = 1,
    ) -> None:
        check_batch(task, batch_barriers)
        job_name = name or task.task_id.removeprefix(f"{self.group_id}.")
        where = f"{self.topology}, job {job_name}"
        _check_freshness(where, freshness)
        objective = freshness or self.freshness
        inlets, outlets = several(f"{where}: inlets", inlets), several(f"{where}: outlets", outlets)
        read = tuple(_name(inlet) for inlet in inlets if isinstance(inlet, (str, Table)))
        sources = [inlet for inlet in inlets if not isinstance(inlet, (str, Table))]
        job = Job(
            name=job_name,
            owner=self.dag.dag_id,
            inlets=read,
            outlets=tuple(_name(outlet) for outlet in outlets),
            externals=tuple(source.declare() for source in sources),
            start_from=declared_start(job_name, start_from, [*read, *(source.name for source in sources)]),
            freshness=None if objective is None else objective.total_seconds(),
        )
        check_sql(task, job)
        as_job(task)
        self._batches[job.name] = batch_barriers
        self._jobs.append((task, job))
        self._tables += [outlet for outlet in outlets if isinstance(outlet, Table)]

    def deliver(
        self,
        tables: str | Mapping[str, str],
        *,
        to: Sink,
        rows: str = "changes",
        task_id: str | None = None,
        **options: Any,
    ) -> DeliverOperator:
        """Have each committed barrier delivered to a sink, exactly once, by a task of its own; returns the task.

        ``tables`` is one table of the topology, of this DAG or another's, or a mapping of several to what they are
        called in the sink, which gets all of them in one step. ``rows`` and ``options`` are those of
        :class:`~airflow_barrier.operators.deliver.DeliverOperator`. Nothing waits for the task: neither the barrier nor
        what comes after the group.

            barrier.deliver("shop.prices", to=PostgreSQLSink("reporting", table="prices"))
        """
        from airflow_barrier.operators.deliver import DeliverOperator  # of few DAGs

        delivery = DeliverOperator(
            task_id=task_id or "deliver_" + re.sub(r"[^A-Za-z0-9_.-]", "_", to.name),
            topology=self.topology,
            tables=tables,
            to=to,
            rows=rows,
            barrier_conn_id=self.barrier_conn_id,
            wait_timeout=self.wait_timeout,
            **options,
        )
        self.deliveries.append(delivery)
        return delivery

    def check(self, name: str, *, sql: str, task_id: str | None = None, **options: Any) -> CheckOperator:
        """Have the barrier committed only if ``sql`` gives no rows over what it has staged; returns the task.

        The query runs on Spark, in a task between the jobs and the commit. If it gives rows, the task fails with the
        first ten of them, and the group's ``on_failure`` says what becomes of the barrier. ``options`` are those of
        :class:`~airflow_barrier.operators.check.CheckOperator`. Raises :class:`ConfigurationError` in a member, which
        has no commit to hold up, and after the group's block.

            barrier.check("no negative prices", sql="SELECT * FROM lake.shop.price WHERE price < 0")
        """
        from airflow_barrier.operators.check import CheckOperator  # of few DAGs

        if self.member or self._closed:
            found = "a member, which has no commit to hold up" if self.member else "it after the block"
            raise ConfigurationError(
                f"topology {self.topology}, check {name!r}: expected barrier.check(...) within the block of the group "
                f"that opens and commits, found {found}; put it there"
            )
        check = CheckOperator(
            task_id=task_id or "check_" + re.sub(r"[^A-Za-z0-9_.-]", "_", name),
            topology=self.topology,
            check=name,
            sql=sql,
            barrier_conn_id=self.barrier_conn_id,
            wait_timeout=self.wait_timeout,
            **options,
        )
        self._checks.append(check)
        return check

    @property
    def fragment(self) -> Fragment:
        """Return what this DAG adds to the topology."""
        return Fragment(self.topology, self.dag.dag_id, tuple(job for _, job in self._jobs), tuple(self._tables))

    @property
    def jobs_by_task(self) -> dict[str, Job]:
        """The jobs of this DAG by the ids of their tasks."""
        return {task.task_id: job for task, job in self._jobs}

    def get_leaves(self) -> Generator[BaseOperator, None, None]:
        """Yield what ``group >> task`` waits for: not for the abort, which is skipped where all went well, nor for
        sinks.
        """
        found: dict[str, BaseOperator] = {}
        within = {task.task_id for task in self} - {task.task_id for task in (self.abort, *self.deliveries) if task}
        for leaf in super().get_leaves():
            for task in leaf.upstream_list if leaf in self.deliveries else [leaf]:
                if isinstance(task, BaseOperator) and task.task_id in within and not within & task.downstream_task_ids:
                    found[task.task_id] = task
        yield from found.values()

    def __enter__(self) -> Self:
        if not self.member:
            # named here, since a group that is entered is left only if its block has begun
            own: dict[str, Any] = {"task_group": self, "dag": self.dag, "trigger_rule": TriggerRule.ALL_SUCCESS}
            self.start = StartBarrierOperator(
                task_id="start",
                topology=self.topology,
                jobs=(),
                barrier_conn_id=self.barrier_conn_id,
                open_manual_runs=self.open_manual_runs,
                backfill=self.backfill,
                wait_timeout=self.wait_timeout,
                **own,
            )
            self.commit = CommitBarrierOperator(
                task_id="commit",
                topology=self.topology,
                barrier_conn_id=self.barrier_conn_id,
                wait_timeout=self.wait_timeout,
                **own,
            )
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            if error is None:
                self._put_together()
        finally:
            super().__exit__(kind, error, traceback)

    def _add_tasks_by_their_words(self) -> None:
        """Make jobs of the tasks of the block that nobody handed over. Raises ConfigurationError for one that takes no
        part in the barrier.
        """
        parts = {task.task_id for task, _ in self._jobs}
        parts |= {task.task_id for task in (self.start, self.commit, *self._checks, *self.deliveries) if task}
        others = []
        for task in _tasks_of(self):
            if task.task_id in parts:
                continue
            said = said_by(task, self.topology)
            if said.only_assets and not could_be_job(task):
                others.append(task)
                continue
            if not (said.inlets or said.outlets):
                raise ConfigurationError(
                    f"topology {self.topology}, task {task.task_id}: expected the tables that it reads and writes, "
                    f"found {task.operator_name} without any: barriers would be committed without what it writes; give "
                    "it inlets=[...] and outlets=[...], hand it to barrier.job(...), or move it out of the group"
                )
            self._add(task, said.inlets, said.outlets)
            take_out(task)
            parts.add(task.task_id)
        for task in others:
            if not parts & (task.get_flat_relative_ids(upstream=True) | task.get_flat_relative_ids(upstream=False)):
                raise ConfigurationError(
                    f"topology {self.topology}, task {task.task_id}: expected a job of the barrier, or a task that the "
                    f"DAG file puts before or after one, found {task.operator_name} that takes no part; give it "
                    "inlets=[...] and outlets=[...], put it in the order (task >> barrier.commit), or move it out of "
                    "the group"
                )

    def _put_together(self) -> None:
        self._add_tasks_by_their_words()
        jobs = tuple(job for _, job in self._jobs)
        if not jobs:
            raise ConfigurationError(f"topology {self.topology}: expected jobs in this group, found none")
        if self.member:  # what a member reads, another DAG writes: the union is checked when it registers
            check_names(self.topology, jobs)
        else:
            Topology.of(self.topology, jobs)
        for operator, job in self._jobs:
            bind(operator, self._binding(job))
            if self.announce_processed:
                operator.add_outlets([processed_asset(self.topology, outlet) for outlet in job.outlets])
        writers = {outlet: operator for operator, job in self._jobs for outlet in job.outlets}
        first, last = set(writers.values()), set(writers.values())
        for operator, job in self._jobs:
            for table in job.inlets:
                if table in writers:
                    operator.set_upstream(writers[table])
                    first.discard(operator)
                    last.discard(writers[table])
        for delivery in self.deliveries:
            delivery.set_upstream(self.commit if self.commit is not None else in_order(last))
        if self.start is not None and self.commit is not None:
            self._frame(self.start, self.commit, jobs, in_order(first), in_order(last))

    def _frame(
        self,
        start: StartBarrierOperator,
        commit: CommitBarrierOperator,
        jobs: tuple[Job, ...],
        first: list[BaseOperator],
        last: list[BaseOperator],
    ) -> None:
        start.jobs, start.tables = jobs, self.fragment.tables
        self.dag.params.update(rehearsal_field())
        if self.backfill != OnBackfill.EXPLAIN:
            self.dag.params.update(correction_fields(jobs))
        start.commit_task_id = commit.task_id
        start.set_downstream(first)
        commit.publishes([outlet for job in jobs for outlet in job.outlets])
        for check in self._checks:
            check.set_upstream(last)
        last = [*last, *self._checks]
        commit.set_upstream(last)
        commit.ends(start.task_id, gives_up=self.on_failure == "abort")
        if self.on_failure == "abort":
            self.abort = AbortBarrierOperator(
                task_id="abort",
                topology=self.topology,
                barrier_conn_id=self.barrier_conn_id,
                trigger_rule=TriggerRule.ONE_FAILED,
            )
            self.abort.set_upstream(last)

    def _binding(self, job: Job) -> Binding:
        return Binding(
            job=job,
            fragment=self.fragment,
            member=self.member,
            commit_task_id=self.commit.task_id if self.commit is not None else None,
            barrier_conn_id=self.barrier_conn_id,
            wait_timeout=self.wait_timeout,
            batch_barriers=self._batches[job.name],
            announce_processed=self.announce_processed,
        )


def _tasks_of(group: TaskGroup) -> Iterator[Any]:
    """Yield the tasks of the group and of groups within it, but for those of another topology's group."""
    for child in group.children.values():
        if not isinstance(child, TaskGroup):
            yield child
        elif not isinstance(child, BarrierGroup):
            yield from _tasks_of(child)


def _name(table: str | Table) -> str:
    if isinstance(table, Table):
        return table.name
    if "/" in table:
        raise ConfigurationError(
            f"expected a table as namespace.table, found {table!r}; a folder is read by a source: Files({table!r}, ...)"
        )
    return table


def in_order(operators: set[BaseOperator]) -> list[BaseOperator]:
    """Sort by task id, so that the same DAG file always serializes to the same DAG."""
    return sorted(operators, key=lambda operator: operator.task_id)


def _check_freshness(topology: str, freshness: timedelta | None) -> None:
    if freshness is not None and freshness <= timedelta(0):
        raise ConfigurationError(f"topology {topology}: freshness: expected more than no time, found {freshness}")
