"""What is told before there is anything to tell, and while only some deployments can be asked."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import Job
from tests.api.asking import Asking
from tests.api.scene import declared
from tests.metaservice.world import World

NOTHING = {"deployments": [], "failed": []}
EMPTY = {"topologies": [], "counts": {}, "after": None}


def missing(tmp_path: Path) -> MetaService:
    return MetaService(f"sqlite:///{tmp_path}/none.db", new=False)


def damaged(tmp_path: Path) -> MetaService:
    """A database that is there, and does not answer."""
    (tmp_path / "damaged.db").write_text("this is no database " * 500)
    return MetaService(f"sqlite:///{tmp_path}/damaged.db", new=False)


def test_a_metaservice_that_is_not_made_yet_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asking = Asking({"prod": missing(tmp_path)})
    with caplog.at_level(logging.WARNING, "airflow_barrier"):
        assert asking.get("").json() == NOTHING
        assert asking.get("/prod/topologies").json() == EMPTY
        assert asking.get("/v1/dags/shop/runs/r").json() == {"barriers": [], "revisions": []}
        for path in ("/prod/topologies/shop", "/prod/topologies/shop/grid", "/prod/events"):
            assert asking.get(path).status_code == 404
    assert caplog.messages == []
    assert list(tmp_path.iterdir()) == []


def test_a_metaservice_without_a_topology(meta: MetaService, asking: Asking) -> None:
    meta.open()
    for user in ("admin", "nobody"):
        assert asking.get("", user).json() == NOTHING
        assert asking.get("/prod/topologies", user).json() == EMPTY
    # what there is for others is nothing of that name
    declared(meta)
    assert asking.get("/prod/topologies", "nobody").status_code == 404


def test_a_metaservice_that_does_not_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asking = Asking({"prod": damaged(tmp_path), "dev": missing(tmp_path)})
    for path in ("", "/prod/topologies", "/prod/topologies/shop/grid", "/prod/events"):
        answer = asking.get(path)
        assert answer.status_code == 503
        assert str(tmp_path) not in answer.text
    assert "damaged.db" in caplog.text


def test_one_that_does_not_answer_is_named_beside_those_that_do(meta: MetaService, tmp_path: Path) -> None:
    declared(meta)
    asking = Asking({"prod": meta, "broken": damaged(tmp_path), "dev": missing(tmp_path)})
    assert asking.get("").json() == {"deployments": [{"deployment": "prod"}], "failed": ["broken"]}
    # not to who sees nothing
    assert asking.get("", "nobody").status_code == 503


def test_the_deployments_of_a_dag(meta: MetaService, tmp_path: Path) -> None:
    """Wherever it has jobs, whichever deployment comes first."""
    declared(meta)
    other = MetaService(f"sqlite:///{tmp_path}/other.db", create=True)
    World(other, "other", ()).declare([Job("load", "other", outlets=("other.rows",))], "other")
    asking = Asking({"dev": other, "prod": meta})
    limited = asking.may_read("ada", "shop", "other")

    def found(dag: str, user: str = "admin") -> list[str]:
        return [each["deployment"] for each in asking.get("", user, dag=dag).json()["deployments"]]

    assert (found("shop"), found("other"), found("nothing")) == (["prod"], ["dev"], [])
    assert (found("shop", limited), found("secret", limited)) == (["prod"], [])
    other.close()
