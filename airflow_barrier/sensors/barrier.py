"""Waiting for tables to reach a barrier, across DAGs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowNotFoundException, conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.links.barrier import BarrierLink, barrier_page, show_page
from airflow_barrier.operators._at import time_of, whole_number
from airflow_barrier.operators._task import run_timestamp, skip, without_useless_retries
from airflow_barrier.operators._waiting import check_event
from airflow_barrier.protocol.errors import ConfigurationError, StoreUnavailableError
from airflow_barrier.triggers import PATIENCE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.waiting import Condition, Delivered, Found


#: The target of who waits for a sink.
_DELIVERED = "DELIVERED"
#: What may be otherwise a moment later: Airflow says of a connection that it cannot reach that it is not defined.
_AWAY = (StoreUnavailableError, AirflowNotFoundException)


class BarrierSensor(BaseSensorOperator):
    """Waits until ``tables`` (default: all of the topology) have reached ``target`` at a barrier.

    :param topology: whose barrier. (templated)
    :param tables: ``namespace.table`` names. (templated)
    :param target: ``PROCESSED`` (staged), ``PRECOMMIT`` (all tables of the barrier are staged) or ``COMMIT`` (readable
        by everyone), or ``DELIVERED``, with ``sink``. (templated)
    :param sink: with target ``DELIVERED``: the sink of the topology that has to have received the barrier, or a later
        one. (templated)
    :param barrier_id: which barrier; without it the one at this run's own timestamp, which another DAG may have yet
        to open. (templated)
    :param at_least: instead, the newest barrier that is at ``target`` (PRECOMMIT or COMMIT), once its timestamp is not
        before this time (ISO 8601, aware): for a DAG whose runs are not those of the barriers. (templated)
    :param deferrable: wait in the triggerer. Default: Airflow's ``[operators] default_deferrable``.
    :param poke_interval: seconds between two looks of a sensor that is not deferred; the triggerer looks twice in one.
    :param patience: so many seconds without an answer of the MetaService, or of Airflow about the connection, are
        waited out. In mode ``reschedule``, where no two looks are of one process, the first is waited out until
        ``timeout``, and the second not at all.

    Fails when the barrier is aborted, or when a later one is there and none at this timestamp; with ``soft_fail`` it is
    skipped instead. Airflow's ``soft_fail``, ``never_fail`` and ``silent_fail`` mean the same however it waits.
    Returns (XCom) the barrier's id.

    >>> BarrierSensor(task_id="committed", topology="shopping", tables=["shop.user_item_price"]).target
    'COMMIT'
    """

    template_fields: Sequence[str] = ("topology", "tables", "target", "sink", "barrier_id", "at_least")
    operator_extra_links = (BarrierLink(),)
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        topology: str,
        tables: Sequence[str] | str | None = None,
        target: str = "COMMIT",
        sink: str | None = None,
        barrier_id: int | str | None = None,
        at_least: datetime | str | None = None,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: float = 10.0,
        patience: float = PATIENCE,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.topology = topology
        self.tables = tables
        self.target = target
        self.sink = sink
        self.barrier_id = barrier_id
        self.at_least = at_least
        if barrier_id is not None and at_least is not None:
            raise ConfigurationError(
                f"task {self.task_id}: expected either barrier_id=... or at_least=..., found both; leave one out"
            )
        if "{" not in str(target):  # else it is known when it is rendered
            self._check_sink()
        self.barrier_conn_id = barrier_conn_id
        self.deferrable = deferrable
        self.patience = patience
        self._answered = monotonic()
        self._shown: int | None = None

    def _check_sink(self) -> None:
        if (self.sink is None) == (self.target == _DELIVERED):
            raise ConfigurationError(
                f"task {self.task_id}: expected sink=... with target={_DELIVERED!r}, and with no other, found sink "
                f"{self.sink!r} and target {self.target!r}; add what is missing, or leave sink=... out"
            )
        if self.sink is not None and (self.tables is not None or self.at_least is not None):
            raise ConfigurationError(
                f"task {self.task_id}: expected no tables=... and no at_least=... with sink=..., since a sink receives "
                "all its tables at once, and a later barrier will do; leave these out, or name the barrier by "
                "barrier_id=..."
            )

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        with self._failing_as_if_it_poked(context):
            return self._wait(context)

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Called when the trigger fired: look again, since an event is only a hint."""
        with self._failing_as_if_it_poked(context):
            check_event(event)
            return self._wait(context)

    @contextmanager
    def _failing_as_if_it_poked(self, context: Context) -> Iterator[None]:
        """Honour ``soft_fail``, ``never_fail`` and ``silent_fail``: Airflow asks for them around its own pokes, and
        around a resumed task only for some errors.
        """
        try:
            yield
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                skip(self, str(error))
            raise
        except Exception as error:
            if self.silent_fail:
                self.log.exception("The look failed, looking again")
                self._defer(context)
            if self.never_fail:
                skip(self, str(error))
            raise

    def poke(self, context: Context) -> bool | PokeReturnValue:
        try:
            found = self._look(context)
        except _AWAY as error:
            undefined = isinstance(error, AirflowNotFoundException)
            if monotonic() - self._answered > self.patience or (undefined and self.reschedule):
                raise
            self.log.warning("No answer from the MetaService or Airflow, looking again: %s", error)
            return False
        self._answered = monotonic()
        if found.waits_for is not None:
            self.log.info("Waiting for %s", found.waits_for)
        return PokeReturnValue(found.waits_for is None, found.barrier_id)

    def _wait(self, context: Context) -> int | None:
        """The barrier's id once it is reached; until then the task is deferred."""
        try:
            found = self._look(context)
        except _AWAY as error:
            self.log.warning("No answer from the MetaService or Airflow, looking again: %s", error)
            self._defer(context)
        if found.waits_for is not None:
            self.log.info("Waiting for %s", found.waits_for)
            self._defer(context)
        self.log.info("Barrier %s of %s has reached %s", found.barrier_id, self.topology, self.target)
        return found.barrier_id

    def _defer(self, context: Context) -> NoReturn:
        from airflow_barrier.triggers.barrier import BarrierTrigger

        self.defer(
            trigger=BarrierTrigger(
                topology=self.topology,
                barrier_conn_id=self.barrier_conn_id,
                conditions=[self._condition(context)],
                patience=self.patience,
                unopened=self._shown is None and self.at_least is None,
            ),
            method_name=self.resume.__name__,
            timeout=self.timeout,
        )

    def _look(self, context: Context) -> Found:
        from airflow_barrier.coordinator.waiting import TopologyView, look

        with without_useless_retries():
            meta = BarrierHook(self.barrier_conn_id).get_meta_service()
            found = look(TopologyView(meta, self.topology), self._condition(context))
        self._show(context, found)
        if found.never is not None:
            other = "barrier_id" if self.sink is not None else "at_least"
            raise AirflowFailException(
                f"expected a barrier to reach {self.target}, found that {found.never}; its epoch is part of the next "
                f"barrier: clear this task if the barrier is opened again, or wait by {other}=... for one that has it"
            )
        return found

    def _show(self, context: Context, found: Found) -> None:
        """Once, however often it looks. The newest barrier is not the one that ``at_least`` waits for, until it is."""
        waits_for_newer = self.at_least is not None and found.waits_for is not None
        if found.barrier_id in (None, self._shown) or waits_for_newer:
            return
        self._shown = found.barrier_id
        show_page(context, self.barrier_conn_id, self.topology, barrier_page(found.barrier_id))

    def _condition(self, context: Context) -> Condition | Delivered:
        from airflow_barrier.coordinator.waiting import Condition, Delivered

        self._check_sink()
        number = None if self.barrier_id is None else whole_number("barrier_id", self.barrier_id)
        if self.sink is not None:
            timestamp = run_timestamp(context)[0] if number is None else None
            return Delivered(self.sink, barrier_id=number, timestamp=timestamp)
        tables = (self.tables,) if isinstance(self.tables, str) else self.tables
        names = tuple(tables) if tables is not None else None
        if number is not None:
            return Condition(self.target, barrier_id=number, tables=names)
        if self.at_least is not None:
            return Condition(self.target, timestamp=time_of("at_least", self.at_least), tables=names, or_newer=True)
        timestamp, _ = run_timestamp(context)
        return Condition(self.target, timestamp=timestamp, tables=names)
