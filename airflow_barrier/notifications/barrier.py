"""Telling somebody that a barrier is late, blocked or aborted, a sink not delivered to, or history corrected."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import BaseNotifier

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.signals import KINDS, Signal, SignalKind, check_kinds

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.metaservice.store import MetaService

log = logging.getLogger(__name__)


class BarrierNotifier(BaseNotifier):
    """Calls each of ``notifiers`` once for each signal, with ``signal`` in its context: a
    :class:`~airflow_barrier.protocol.signals.Signal`, of which templates use ``signal.kind``, ``signal.topology``,
    ``signal.barrier_id``, ``signal.at``, ``signal.dag`` and ``signal.summary``.

    A run of a schedule tells what has happened since the one before it. So each signal is told once, by each DAG, with
    nothing to be remembered; a run that is cleared tells its own again. Any other run tells what has happened since the
    newest run of the schedule, and the next one of that tells it, too.

    A notifier that fails keeps no other from being called; once all were called, the failure is raised.

    :param notifiers: any notifiers of Airflow's. A copy of each is called, for its templates are rendered in place.
    :param topologies: of which topologies (None: of all that the deployment has). (templated)
    :param on: which kinds of signals: late, blocked, aborted, delivery_failing, revised.

    >>> from airflow.providers.smtp.notifications.smtp import SmtpNotifier
    >>> mail = SmtpNotifier(
    ...     to="data@example.com",
    ...     subject="{{ signal.topology }}: {{ signal.kind }}",
    ...     html_content="{{ signal.summary | e }}",
    ... )
    >>> BarrierNotifier(mail, topologies=["shopping"], on=["late", "blocked"]).on
    ('late', 'blocked')
    """

    template_fields = ("topologies", "barrier_conn_id")

    def __init__(
        self,
        *notifiers: BaseNotifier,
        topologies: Sequence[str] | None = None,
        on: Sequence[SignalKind] = KINDS,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        context: Context | None = None,
    ) -> None:
        super().__init__(context)
        check_wanted(notifiers, topologies, on)
        self.notifiers = notifiers
        self.topologies = topologies
        self.on = tuple(on)
        self.barrier_conn_id = barrier_conn_id

    def notify(self, context: Context) -> None:
        found = signals_of(context, BarrierHook(self.barrier_conn_id).get_meta_service(), self.topologies, self.on)
        failed = []
        for signal, notifier in _each(found, self.notifiers):
            try:
                notifier(_with(context, signal))
            except Exception as error:
                failed.append(_failed(notifier, signal, error))
            else:
                _told(notifier, signal)
        _raise(failed)

    async def async_notify(self, context: Context) -> None:
        meta = await BarrierHook(self.barrier_conn_id).aget_meta_service()
        found = await asyncio.to_thread(signals_of, context, meta, self.topologies, self.on)
        failed = []
        for signal, notifier in _each(found, self.notifiers):
            try:
                if type(notifier).async_notify is BaseNotifier.async_notify:  # it has the other way only
                    await asyncio.to_thread(notifier, _with(context, signal))
                else:
                    notifier.context = _with(context, signal)
                    await notifier
            except Exception as error:
                failed.append(_failed(notifier, signal, error))
            else:
                _told(notifier, signal)
        _raise(failed)


def check_wanted(notifiers: Sequence[BaseNotifier], topologies: Sequence[str] | None, on: Sequence[str]) -> None:
    """Raises ConfigurationError for what nobody can be told by or of."""
    if isinstance(topologies, str):
        raise ConfigurationError(f"topologies: expected a list of names, found {topologies!r}; write [{topologies!r}]")
    for each in notifiers:
        if not isinstance(each, BaseNotifier):
            raise ConfigurationError(f"expected notifiers of Airflow's, found {each!r}; give such as SmtpNotifier(...)")
    check_kinds(on)


def signals_of(
    context: Context, meta: MetaService, topologies: Sequence[str] | None, on: Sequence[SignalKind]
) -> list[Signal]:
    """Return what the context's run has to tell, the oldest first. Raises UnknownTopologyError."""
    from airflow_barrier.coordinator.signals import signals
    from airflow_barrier.notifications._interval import interval_of

    since, until = interval_of(context, meta.now())
    names = meta.topologies.names() if topologies is None else topologies
    log.info("Looking at %s from %s to %s", ", ".join(names) or "no topology", since, until)
    found = [signal for name in names for signal in signals(meta, name, since, until, on)]
    return sorted(found, key=lambda each: each.at)


def _each(found: Sequence[Signal], notifiers: Sequence[BaseNotifier]) -> list[tuple[Signal, BaseNotifier]]:
    return [(signal, copy.copy(notifier)) for signal in found for notifier in notifiers]


def _with(context: Context, signal: Signal) -> Any:
    return {**context, "signal": signal}


def _told(notifier: BaseNotifier, signal: Signal) -> None:
    log.info("%s was told: %s: %s: %s", type(notifier).__name__, signal.topology, signal.kind, signal.summary)


def _failed(notifier: BaseNotifier, signal: Signal, error: Exception) -> str:
    name = type(notifier).__name__
    log.error("%s was not told: %s: %s: %s", name, signal.topology, signal.kind, signal.summary, exc_info=error)
    return f"{name} of {signal.topology}: {signal.kind} ({type(error).__name__}: {error})"


def _raise(failed: Sequence[str]) -> None:
    if failed:
        raise AirflowException(
            f"expected all notifiers to be called, found that {len(failed)} calls failed: {'; '.join(failed[:3])}"
            f"{' and more' if len(failed) > 3 else ''}. Run again, all signals of this run are told again"
        )
