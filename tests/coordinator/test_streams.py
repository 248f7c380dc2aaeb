"""A stream of Pravega as a source, through the coordinator, from the first barrier until its job leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.cuts import begin_anew
from airflow_barrier.coordinator.expiring import expire
from airflow_barrier.coordinator.leaving import leave
from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.retention import Retention
from airflow_barrier.protocol.topology import Fragment, Job
from tests.sources.streams import numbered, numbers_of, source_of
from tests.support.ports import free_port
from tests.support.pravega import Pravega
from tests.support.shop import JOBS, SHOPPING, Shop

ROWS = [{"amount": 1, "price": 1}]
pytestmark = [pytest.mark.drawn("Pravega"), pytest.mark.touches("sources/pravega/cuts.py", "coordinator/cuts.py")]


def test_a_stream_from_the_first_barrier_until_its_job_leaves(embedded: Shop, pravega: Pravega) -> None:
    """An aborted barrier, a server that was away, events that are gone, and files that expire."""
    source, at = source_of(pravega, pravega.stream(2)), [pravega.credentials]
    job = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(source.declare(),))
    fragment = Fragment("shopping", "shopping_dag", (job, *JOBS[1:]))
    deployment = replace(embedded.deployment, credentials=lambda *_: at[0])
    shop, cuts = Shop(deployment), list[Cut]()
    for day in range(1, 6):
        pravega.write(source.stream, numbered(range(100 * day, 100 * day + 100)))
        if day == 3:
            at[0] = replace(at[0], port=free_port())
        if day == 5:
            pravega.ask("truncate", source.stream, pravega.tail(source.stream))
        barrier = shop.open(day, fragment)
        if day == 2:
            abort_barrier(deployment, "shopping", 2, reason="again", actor="test")
            continue
        at[0] = pravega.credentials
        if day == 5:
            with pytest.raises(SourceDataError, match="airflow-barrier source resnapshot shopping events"):
                shop.begin(barrier, "load")
            begin_anew(deployment, "shopping", "events", reason="they are gone", actor="me")
            shop.begin(barrier, "load", "again")
        else:
            shop.process_all(barrier, ROWS)
            shop.commit(barrier)
        cuts.append(deployment.meta.cuts.of("shopping", day)["events"])
    assert [cut.words for cut in cuts] == [
        "up to event 100, with 100 events",
        "up to event 300, with 200 events",
        "up to event 400, with 100 events",
        "up to event 400, with 0 events",
    ]
    assert numbers_of(cuts) == list(range(100, 500))
    expire(deployment, "shopping", Retention(1), lambda *_: None, actor="test")
    with pytest.raises(SourceDataError, match="its barrier expired, or somebody deleted them"):
        source.check_held(cuts[0], deployment.tables)
    abort_barrier(deployment, "shopping", 5, reason="again", actor="test")
    leave(deployment, "shopping", "shopping_dag", None, reason="moves", actor="me")
