"""A DAG that watches, in a real Airflow: who is to be told gets a mail, once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update

from airflow_barrier.metaservice import schema
from airflow_barrier.protocol.topology import Job
from tests.metaservice.world import World
from tests.support.airflow import LONG, AirflowUnderTest
from tests.support.mail import mailbox, text_of
from tests.support.runs import run_of

if TYPE_CHECKING:
    from airflow_barrier.coordinator.deployment import Deployment


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_an_aborted_barrier_is_told_by_mail_once(airflow: AirflowUnderTest, deployment: Deployment) -> None:
    world = World(deployment.meta, "watched", ())
    world.declare([Job("load", "shop", outlets=("watched.orders",))], "shop")
    world.abort(world.open(1, run=run_of("shop/scheduled__1")).barrier_id)
    with world.meta._db.transaction(write=True) as connection:  # ten minutes ago, so that one of two runs tells it
        at = world.meta.now() - timedelta(minutes=10)
        connection.execute(update(schema.audit).where(schema.audit.c.topology == "watched").values(at=at))
    with mailbox() as box:
        connection = {
            "connection_id": "watching_mail",
            "conn_type": "smtp",
            "host": "127.0.0.1",
            "port": box.port,
            "extra": '{"disable_ssl": true, "disable_tls": true}',
        }
        airflow.api.post("/connections", json=connection).raise_for_status()
        airflow.unpause("watching")
        runs = airflow.wait_for_runs("watching", 2)
        airflow.pause("watching")
        (mail,) = box.mails
    assert (mail["Subject"], mail["To"]) == ("watched: aborted", "data@example.com")
    assert text_of(mail) == "barrier 1 was aborted by test: bad input"
    told = "SmtpNotifier was told: watched: aborted: barrier 1 was aborted by test: bad input"
    # Airflow dates the first run by the moment at which it has read the DAG: the next run tells what came after that
    assert [told in airflow.log("watching", run, "watch") for run in runs].count(True) == 1
