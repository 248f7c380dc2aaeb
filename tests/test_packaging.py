"""The wheel as users get it: what it contains, what it tells Airflow, and what importing its parts drags in."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import distribution, entry_points
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import jsonschema
import pytest

import airflow_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.provider import DISTRIBUTION, get_provider_info
from tests.support.waiting import patience

PACKAGE = Path(airflow_barrier.__file__).parent
DAG_ROOMS = ("operators", "sensors", "notifications", "triggers", "links", "hooks", "plugins", "cli", "sources")
DRIVER_ROOMS = ("protocol", "tables", "sources", "sinks", "spark")
HEAVY = ("pyspark", "pyiceberg", "pyarrow", "pandas")


def modules(*rooms: str) -> list[str]:
    """Every module of the rooms that exist, as the installed package has them."""
    files = sorted(file for room in rooms for file in (PACKAGE / room).rglob("*.py"))
    names = [".".join(("airflow_barrier", *file.relative_to(PACKAGE).with_suffix("").parts)) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def fresh_interpreter(code: str, tmp_path: Path, **environment: str) -> Any:
    """What `code`, run away from the checkout in an interpreter of its own, leaves in its variable `result`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json\nprint('result ' + json.dumps(result))"],
        cwd=tmp_path,
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow"), **environment},
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("result "))
    return json.loads(line.removeprefix("result "))


def loaded_by(names: list[str], tmp_path: Path) -> set[str]:
    """The top-level packages in memory after a fresh interpreter imported `names`."""
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "result = sorted({name.partition('.')[0] for name in sys.modules})"
    )
    return set(fresh_interpreter(code, tmp_path))


def test_the_hook_comes_first_where_airflows_settings_import_operators(tmp_path: Path) -> None:
    settings = tmp_path / "airflow" / "config" / "airflow_local_settings.py"
    settings.parent.mkdir(parents=True)
    settings.write_text("import airflow_barrier.operators.epoch, airflow_barrier.sensors.barrier\n")
    code = "from airflow_barrier.hooks.barrier import BarrierHook\nresult = BarrierHook.conn_type"
    assert fresh_interpreter(code, tmp_path) == "barrier"


def provider_strings(info: dict[str, Any]) -> list[str]:
    """Everything in provider info that Airflow will import as `module.attribute`."""
    return [
        *(kind["hook-class-name"] for kind in info["connection-types"]),
        *info["notifications"],
        *info["extra-links"],
        *info["cli"],
    ]


def test_the_guards_jar_in_git_is_what_its_sources_make(tmp_path: Path) -> None:
    """Byte for byte with the compiler that made it, a JDK 17's; by the names of its classes with another one."""
    root, jar = Path(__file__).parents[1], tmp_path / "made" / "guard.jar"
    subprocess.run(["sh", "scripts/guard.sh", jar], cwd=root, check=True, timeout=patience())
    kept = root / "airflow_barrier" / "spark" / "jars" / "airflow-barrier-guard.jar"
    javac = Path(os.environ["JAVA_HOME"]) / "bin" / "javac"
    version = [javac if javac.exists() else "javac", "-version"]
    said = subprocess.run(version, capture_output=True, text=True, check=True)
    if "javac 17." in said.stdout:
        assert jar.read_bytes() == kept.read_bytes(), "run: scripts/guard.sh, and commit the jar"
    else:
        assert ZipFile(jar).namelist() == ZipFile(kept).namelist()


def test_users_are_constrained_to_what_the_tests_ran_with() -> None:
    requirements = Path(__file__).parents[1] / "requirements"
    lines = (requirements / "lock.txt").read_text().splitlines()
    locked = [line.removesuffix(" \\") for line in lines if not line.startswith(" ")]
    assert (requirements / "constraints.txt").read_text().splitlines() == locked


def test_the_tests_run_against_the_installed_wheel() -> None:
    purelib = Path(str(distribution(DISTRIBUTION).locate_file("")))
    assert purelib.name == "site-packages"
    assert purelib / "airflow_barrier" == PACKAGE, "run `make test`: it installs the wheel that the tests are about"


def test_the_wheel_carries_types_license_and_guard() -> None:
    files = {str(file) for file in distribution(DISTRIBUTION).files or ()}
    assert "airflow_barrier/py.typed" in files
    assert "airflow_barrier/spark/jars/airflow-barrier-guard.jar" in files
    assert "airflow_barrier/plugins/static/barriers.js" in files
    assert any(file.endswith("licenses/LICENSE") for file in files)
    assert not {file for file in files if file.startswith(("tests/", "demo/", "dags/"))}


def test_provider_info_follows_airflows_schema() -> None:
    import airflow

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_provider_info_names_the_distribution_and_everything_it_names_exists() -> None:
    info = get_provider_info()
    assert info["package-name"] == distribution(DISTRIBUTION).metadata["Name"]
    for name in provider_strings(info):
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name
    for room in ("operators", "sensors", "hooks", "triggers"):
        (listed,) = info[room]
        assert listed["python-modules"], f"no module of {room} is in the wheel"
        for name in listed["python-modules"]:
            import_module(name)


def test_the_guides_that_provider_info_names_are_there() -> None:
    (integration,) = get_provider_info()["integrations"]
    guides = [Path(__file__).parents[1] / guide.removeprefix("/") for guide in integration["how-to-guide"]]
    assert guides
    assert [guide for guide in guides if not guide.is_file()] == []


def test_the_connection_form_asks_for_every_setting() -> None:
    (connection,) = get_provider_info()["connection-types"]
    settings = {field.name for field in dataclasses.fields(Settings)}
    # The MetaService's password is the connection's own password field; the catalog's properties come from another one.
    asked = settings - {"metaservice_password", "catalog_properties"} | {"iceberg_conn_id"}
    assert set(connection["conn-fields"]) == asked


def test_each_field_of_the_connection_is_explained() -> None:
    (connection,) = get_provider_info()["connection-types"]
    page = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text()
    assert [field for field in connection["conn-fields"] if f"`{field}`" not in page] == []


def test_every_operator_link_is_listed() -> None:
    from airflow.sdk import BaseOperatorLink

    defined = {
        f"{name}.{attribute}"
        for name in modules("links")
        for attribute, value in vars(import_module(name)).items()
        if isinstance(value, type) and issubclass(value, BaseOperatorLink) and value.__module__ == name
    }
    assert defined == set(get_provider_info()["extra-links"])


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("apache_airflow_provider", "provider_info"),
        ("airflow.plugins", "barrier"),
        ("console_scripts", "airflow-barrier"),
    ],
)
def test_entry_points_load(group: str, name: str) -> None:
    (entry,) = (
        entry for entry in entry_points(group=group, name=name) if entry.dist and entry.dist.name == DISTRIBUTION
    )
    assert callable(entry.load())


@pytest.mark.parametrize("lazy", ["True", "False"])
def test_airflow_finds_the_provider_its_connection_form_and_its_plugin(tmp_path: Path, lazy: str) -> None:
    code = (
        "from airflow.plugins_manager import get_import_errors, get_plugin_info\n"
        "from airflow.providers_manager import ProvidersManager\n"
        "manager = ProvidersManager()\n"
        "manager.initialize_providers_list()\n"
        "result = {\n"
        f"    'provider': {DISTRIBUTION!r} in manager.providers,\n"
        "    'hook': manager.hooks['barrier'].hook_name,\n"
        "    'fields': sorted(n for n in manager.connection_form_widgets if n.startswith('extra__barrier__')),\n"
        "    'plugins': [p['name'] for p in get_plugin_info() if p['name'] == 'barrier'],\n"
        # of ours: another provider's plugin comes twice, and Airflow says so
        "    'errors': {name: error for name, error in get_import_errors().items() if 'barrier' in name},\n"
        "}\n"
    )
    fields = [f"extra__barrier__{name}" for name in sorted(get_provider_info()["connection-types"][0]["conn-fields"])]
    assert fresh_interpreter(code, tmp_path, AIRFLOW__CORE__LAZY_DISCOVER_PROVIDERS=lazy) == {
        "provider": True,
        "hook": "Barrier",
        "fields": fields,
        "plugins": ["barrier"],
        "errors": {},
    }


def test_the_package_itself_and_its_provider_info_import_only_the_standard_library(tmp_path: Path) -> None:
    loaded = loaded_by(["airflow_barrier", "airflow_barrier.provider"], tmp_path)
    assert loaded - loaded_by([], tmp_path) - sys.stdlib_module_names == {"airflow_barrier"}


def test_commands_are_defined_without_loading_what_they_use(tmp_path: Path) -> None:
    loaded = loaded_by(["airflow_barrier.cli.main"], tmp_path)
    assert loaded - loaded_by([], tmp_path) - sys.stdlib_module_names == {"airflow_barrier"}


def test_commands_take_nothing_from_what_airflows_rooms_keep_to_themselves() -> None:
    """Such a module may load all of Airflow, which a command does only where it asks Airflow for something."""
    private = re.compile(r"airflow_barrier\.(operators|sensors|triggers|hooks|links|plugins)(\.\w+)*\._\w+")
    files = sorted((PACKAGE / "cli").rglob("*.py"))
    nodes = [(file.name, node) for file in files for node in ast.walk(ast.parse(file.read_text()))]
    taken = [(file, node.module) for file, node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    assert taken
    assert [each for each in taken if private.match(each[1])] == []


def test_parsing_a_dag_loads_no_engine_and_no_table_format(tmp_path: Path) -> None:
    loaded = loaded_by(modules(*DAG_ROOMS), tmp_path)
    assert "airflow" in loaded
    assert not loaded & set(HEAVY)


def test_a_spark_driver_needs_neither_airflow_nor_a_database_driver(tmp_path: Path) -> None:
    # a sink's client is loaded by the task that delivers, and pyiceberg's types by the one that makes tables
    of_tasks = ("airflow_barrier.sinks._", "airflow_barrier.tables._declared")
    named = [each for each in modules(*DRIVER_ROOMS) if not each.startswith(of_tasks)]
    loaded = loaded_by(named, tmp_path)
    assert "airflow_barrier" in loaded
    assert not loaded & {"airflow", "sqlalchemy", "alembic", *HEAVY}
