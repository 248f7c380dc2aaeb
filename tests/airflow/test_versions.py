"""Stories of Airflow on the other versions of it that the package runs on, in environments that have them."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG
from packaging.version import Version

from airflow_barrier.cli.doctor.airflow import features as doctor
from airflow_barrier.cli.doctor.check import Case
from airflow_barrier.hooks import features
from airflow_barrier.hooks.features import Feature, version_remark
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.protocol.errors import ConfigurationError
from tests.support.airflow import LONG
from tests.support.drawing import drawn
from tests.support.versions import CHECKOUT, play_on

_BOTH = (
    "tests/airflow/test_revising.py",  # backfills, and their cancellation
    "tests/airflow/test_members.py",
)
#: What a version plays. Each starts an Airflow of its own: tasks, deferral and callbacks are those of its version.
CASES = [
    *((version, story) for story in _BOTH for version in ("3.1", "3.2")),
    ("3.1", "tests/airflow/test_killing.py"),  # tasks that are marked failed, jobs that are submitted
    ("3.1", "tests/airflow/test_by_hand.py"),  # `dags test`, which 3.2.2 cannot with this Starlette
]


@pytest.mark.every_landing
@pytest.mark.timeout(LONG * len(CASES))
def test_the_same_stories_on_older_versions() -> None:
    for version, story in drawn(CASES, "versions of Airflow"):
        play_on(f"airflow-{version}", story)


def test_the_documents_say_what_older_versions_lack() -> None:
    told = (CHECKOUT / "docs/install.md").read_text()
    for feature in Feature:
        assert f"| {feature.since} | {feature.what} | {feature.without} |" in told


def test_what_needs_a_newer_one_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "AIRFLOW", Version("3.1.8"))
    with pytest.raises(ConfigurationError) as refused, DAG("shopping", schedule=None):
        BarrierGroup("shopping", announce_processed=True)
    assert str(refused.value) == (
        "topology shopping: announce_processed=True: expected Airflow 3.3 or later, which has partition keys that a "
        "task gives to asset events, found 3.1.8; leave it out, or upgrade Airflow. Without it the event of a "
        "published table names its barriers in `extra` alone, and announce_processed=True is refused: DAGs of other "
        "teams have a schedule of their own, and their tasks wait for tables"
    )


def test_doctor_says_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> list[str]:
        return [f"{one.verdict.value}: {one.text}" for one in doctor(Case("barrier_default", (), ()))]

    assert said() == [f"ok: version {features.AIRFLOW}, with all that this package can make use of"]
    monkeypatch.setattr(features, "AIRFLOW", Version("3.2.2"))
    whole, *lacking = said()
    assert whole == "ok: version 3.2.2"
    assert [line.partition(":")[2].partition(",")[0] for line in lacking] == [
        " 3.2.2 is without partition keys that a task gives to asset events",
        " 3.2.2 is without the option rerun_with_latest_version",
    ]
    monkeypatch.setattr(features, "AIRFLOW", Version("3.0.6"))
    assert [line.partition(", on")[0] for line in said()] == ["warn: expected Airflow 3.1 or later and before 3.4"]


def test_a_version_that_no_test_runs_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert version_remark() is None
    for unknown in ("3.0.6", "3.4.0"):
        monkeypatch.setattr(features, "AIRFLOW", Version(unknown))
        assert f"on which this package is tested, found {unknown}; take one of these" in (version_remark() or "")
