"""`airflow-barrier topology`, as a person uses it; and one DAG file in two environments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.tables import Table
from tests.adopting.existing import EVENTS, MIRROR, NAME, Existing

DAG_FILE = f'''
from datetime import datetime, timezone

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sources.files import Files

with DAG("load_dag", start_date=datetime(2017, 1, 1, tzinfo=timezone.utc)), BarrierGroup("{NAME}") as barrier:
    landing = Files("LANDING", schema="n BIGINT", name="landing")
    load = SparkEpochOperator(task_id="load", application="/jobs/load.py")
    barrier.job(load, inlets=[landing], outlets=["{EVENTS}"], START)
    barrier.job(
        SparkEpochOperator(task_id="mirror", application="/jobs/mirror.py"), inlets=["{EVENTS}"], outlets=["{MIRROR}"]
    )
'''


@pytest.fixture
def connections(existing: Existing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`prod` is the deployment with the tables, `dev` an empty one."""
    (tmp_path / "dev").mkdir()
    for name, warehouse in (("PROD", tmp_path / "warehouse"), ("DEV", tmp_path / "dev")):
        extra = {"warehouse": str(warehouse), "metaservice_url": f"sqlite:///{warehouse}/barrier.db"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "barrier", "extra": extra}))


def dag_file(folder: Path, start: str = "") -> str:
    file = folder / "load_dag.py"
    (folder / "landing").mkdir(exist_ok=True)
    text = DAG_FILE.replace("LANDING", f"{folder}/landing")
    file.write_text(text.replace(", START", f", start_from={start}" if start else ""))
    return str(file)


@pytest.mark.usefixtures("connections")
def test_validate_adopt_and_leave(existing: Existing, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    existing.land(1)
    existing.load_plainly(1)
    wap = existing.deployment.tables.wap_enabled
    assert main(["topology", "validate", dag_file(tmp_path), "--conn-id", "prod"]) == 1
    said = capsys.readouterr().out
    for text in (
        f"{EVENTS} (topology {NAME})",
        f"main at snapshot {existing.main(EVENTS)}, 1 rows, format version 2",
        "write-audit-publish: off -> on",
        "old metadata documents: kept for ever -> deleted",
        "start_from: needed",
        "written by job load (DAG load_dag)",
        "read by job mirror (DAG load_dag)",
        "job load has to say start_from",
    ):
        assert text in said
    assert main(["topology", "validate", dag_file(tmp_path), "--conn-id", "prod", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["can_be_done"], told["dry_run"], told["switched_on"]) == (False, True, [])
    steps = {step["table"]: step for step in told["plan"]["steps"]}
    assert (steps[EVENTS]["snapshot"], steps[EVENTS]["rows"]) == (existing.main(EVENTS), 1)
    assert "job load has to say start_from" in str(told["plan"])
    file = dag_file(tmp_path, "'latest'")
    assert main(["topology", "adopt", "--dry-run", file, "--conn-id", "prod"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert wap([EVENTS, MIRROR]) == {EVENTS: False, MIRROR: False}
    assert main(["topology", "adopt", file, "--conn-id", "prod"]) == 0
    assert f"is on now for {EVENTS}, {MIRROR}" in capsys.readouterr().out
    assert wap([EVENTS, MIRROR]) == {EVENTS: True, MIRROR: True}
    assert main(["topology", "adopt", file, "--conn-id", "prod", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["switched_on"] == []  # again changes nothing

    # the same file in an environment where there is nothing yet: looking makes no database there
    for look in (["validate", file], ["adopt", "--dry-run", file]):
        assert main(["topology", *look, "--conn-id", "dev"]) == 75
        assert "by airflow-barrier database migrate" in capsys.readouterr().err
    assert list((tmp_path / "dev").iterdir()) == []
    # ... and where there are no such tables
    assert main(["database", "migrate", "--conn-id", "dev"]) == 0
    assert main(["topology", "validate", file, "--conn-id", "dev"]) == 1
    assert "refused: nothing was changed" in capsys.readouterr().out

    existing.run(1, existing.load_job("latest"), existing.mirror_job())
    leave = ["topology", "leave", NAME, "--dag", "load_dag", "--reason", "moves away", "--conn-id", "prod"]
    assert main([*leave, "--job", "load"]) == 1
    assert f"{EVENTS} is read by job mirror" in capsys.readouterr().err
    assert main(leave) == 0
    told = capsys.readouterr().out
    assert "DAG load_dag has left topology old" in told
    assert f"table {EVENTS} is given back" in told
    assert wap([EVENTS, MIRROR]) == {EVENTS: False, MIRROR: False}
    assert main([*leave, "--json"]) == 0
    left = json.loads(capsys.readouterr().out)
    assert (left["withdrawal"]["reason"], left["open"], left["tables"]) == ("moves away", [], [EVENTS, MIRROR])
    join = ["topology", "join", NAME, "--dag", "load_dag", "--conn-id", "prod"]
    assert main(join) == 0
    assert main(join) == 0
    assert "may take part again" in (said := capsys.readouterr().out)
    assert "has not left" in said
    assert main([*join, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["readmitted"] is False


DECLARED = """
from datetime import datetime, timezone

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.tables import Table

with DAG("new_dag", start_date=datetime(2017, 1, 1, tzinfo=timezone.utc)), BarrierGroup("new") as barrier:
    visits = Table("shop.visits", "n BIGINT")
    barrier.job(SparkEpochOperator(task_id="load", application="/jobs/load.py"), outlets=[visits])
    barrier.job(
        SparkEpochOperator(task_id="count", application="/jobs/count.py"),
        inlets=[visits],
        outlets=[Table("shop.counts", "n BIGINT", partitioned_by=["n"])],
    )
"""


@pytest.mark.usefixtures("connections")
def test_declared_tables_are_made_and_told(
    existing: Existing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*command: str) -> tuple[int, str]:
        code = main([*command, str(file), "--conn-id", "prod"])
        return code, capsys.readouterr().out

    catalog = existing.deployment.tables.catalog
    file = tmp_path / "new_dag.py"
    file.write_text(DECLARED)
    code, told = said("topology", "validate")
    assert (code, told.count("will be made when its job joins")) == (0, 2)
    assert said("table", "create", "--dry-run") == (0, "shop.counts: will be made\nshop.visits: will be made\n")
    assert not catalog.namespace_exists("shop")
    assert existing.deployment.tables.create(Table("shop.visits", "n BIGINT, more STRING"))
    assert said("table", "create") == (0, "shop.counts: made\nshop.visits: there already\n")
    assert said("table", "create", "--json") == (
        0,
        json.dumps(
            [
                {"table": "shop.counts", "outcome": "there already", "problem": None},
                {"table": "shop.visits", "outcome": "there already", "problem": None},
            ],
            indent=2,
        )
        + "\n",
    )
    file.write_text(DECLARED.replace('"shop.visits", "n BIGINT"', '"shop.visits", "n STRING, at DATE"'))
    for command in (("topology", "validate"), ("table", "create")):
        code, told = said(*command)
        assert code == 1
        assert "column n is long, declared string; column at (date) is missing. Change the table (ALTER TABLE" in told
    file.write_text(DECLARED.replace('"shop.visits"', '"lake.shop.visits"'))  # as Spark calls it
    for command in (("topology", "validate"), ("table", "create")):
        code, told = said(*command)
        assert (code, "found Spark's name of the catalog, lake, before it" in told) == (1, True)
        assert "did you mean 'shop.visits'?" in told
    assert not catalog.namespace_exists("lake")
    file.write_text(
        DECLARED.replace("outlets=[visits]", 'outlets=["lake.shop.undeclared"]').replace("[visits],", "[],")
    )
    code, told = said("topology", "validate")
    assert (code, "did you mean 'shop.undeclared'?" in told) == (1, True)
    file.write_text(DECLARED.replace("outlets=[visits]", 'outlets=["shop.undeclared"]').replace("inlets=[visits],", ""))
    code, told = said("topology", "validate")
    assert (code, "shop.undeclared" in told, "outlets=[Table(" in told) == (1, True, True)

    existing.land(1)
    existing.run(1, existing.load_job())
    file.write_text(DECLARED.replace('BarrierGroup("new")', 'BarrierGroup("olds", member=True)'))
    code, told = said("topology", "validate")
    note = f"DAG new_dag: no DAG has ever opened a barrier of topology olds; there are: {NAME}; did you mean {NAME!r}?"
    assert (code, note in " ".join(told.split())) == (0, True), told


@pytest.mark.usefixtures("connections")
def test_files_without_groups_or_that_do_not_load_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("from airflow.sdk import DAG\nraise ValueError('no dag today')\n")
    assert main(["topology", "validate", str(broken), "--conn-id", "prod"]) == 1
    assert "no dag today" in capsys.readouterr().err
    broken.write_text("from airflow.sdk import DAG\n")
    assert main(["topology", "validate", str(broken), "--conn-id", "prod"]) == 1
    assert "expected DAGs with a BarrierGroup, found none" in capsys.readouterr().err
