"""How the package is built: what stands on what, what a DAG file loads, and what a newcomer has to touch.

Each bound is what was reached. Who makes it smaller tightens it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import grimp
import pytest

import airflow_barrier
from tests.support.waiting import patience

PACKAGE = Path(airflow_barrier.__file__).parent
DAGS = Path(__file__).parent.parent / "dags"
#: Of the package, to parse dags/shopping.py. Airflow's DAG processor does so for every DAG file, again and again.
MODULES_OF_A_DAG_FILE = 52


def test_no_module_stands_on_itself() -> None:
    """Imports inside functions count, those for type checkers do not."""
    graph = grimp.build_graph("airflow_barrier", exclude_type_checking_imports=True, cache_dir=None)
    circles = {
        module
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if graph.chain_exists(importer=imported, imported=module)
    }
    assert circles == set()


def test_a_dag_file_loads_little(tmp_path: Path) -> None:
    code = (
        f"import runpy, sys\nsys.path.insert(0, {str(DAGS)!r})\nrunpy.run_path({str(DAGS / 'shopping.py')!r})\n"
        "print('loaded', *sorted(name for name in sys.modules if name.startswith('airflow_barrier')))"
    )
    (line,) = (line for line in said_by(code, tmp_path).splitlines() if line.startswith("loaded "))
    loaded = line.split()[1:]
    assert "airflow_barrier.operators.group" in loaded
    assert len(loaded) <= MODULES_OF_A_DAG_FILE, loaded


NEW_SOURCE = """
from dataclasses import dataclass
from airflow_barrier.protocol.topology import ExternalSource

@dataclass(frozen=True)
class Pigeons:
    kind = "pigeons"
    name: str

    @classmethod
    def of(cls, declared):
        return cls(declared.name)
"""
NEW_COMMAND = """
from airflow_barrier.cli.frame import Command

PIGEONS = Command("pigeons", "Count pigeons.", lambda parser: None, lambda options: 3)
"""
NEW_CATALOG = """
class Nest:
    atomic, database_url, joining = True, None, None

    def __init__(self, uri, properties):
        self.uri, self.properties = uri, properties

    def check(self):
        return f"{self.uri} has {self.properties}."

    def close(self):
        pass

def connect(uri, warehouse, catalog_name, properties, documents, *, atomic):
    return Nest(uri, properties)
"""
ITS_ENTRY = """
    "nest": CatalogKind(
        title="a nest",
        about="which has no choice",
        adapter="airflow_barrier.tables.nest",
        extras=frozenset(),
        schemes=("nest",),
        properties=ConnectionProperties(frozenset({"twigs"}), (), "secret", ()),
    ),"""
NAMED_BY_A_CONNECTION = """
import json
from airflow.sdk import Connection
from airflow_barrier.coordinator.deployment import tables_of
from airflow_barrier.hooks.barrier import settings_of
from airflow_barrier.protocol.errors import ConfigurationError

def told(extras, **more):
    barrier = Connection(conn_id="b", conn_type="barrier", extra=json.dumps({"warehouse": "/lake", **extras}))
    its = {"type": "nest", "s3.region": "x", **more}
    iceberg = Connection(
        conn_id="i", conn_type="iceberg", host="nest://oak", login="a", password="b", extra=json.dumps(its)
    )
    try:
        return tables_of(settings_of(barrier, iceberg)).check()
    except ConfigurationError as error:
        return error

print(told({}, twigs=3))
print(told({}, scope="x"))
print(told({"catalog_publish": "atomic"}))
"""


@pytest.mark.parametrize(
    ("file", "content", "registrations", "use", "said"),
    [
        (
            "sources/pigeons.py",
            NEW_SOURCE,
            {
                "sources/__init__.py": (
                    "    Files.kind: Files,",
                    "    Files.kind: Files,\n    Pigeons.kind: Pigeons,",
                    "from airflow_barrier.sources.pigeons import Pigeons",
                )
            },
            "from airflow_barrier.protocol.topology import ExternalSource\n"
            "from airflow_barrier.sources import source_of\nprint(source_of(ExternalSource('loft', 'pigeons')))",
            "Pigeons(name='loft')",
        ),
        (
            "cli/commands/pigeons.py",
            NEW_COMMAND,
            {
                "cli/commands/__init__.py": (
                    "    STATUS,",
                    "    STATUS,\n    PIGEONS,",
                    "from airflow_barrier.cli.commands.pigeons import PIGEONS",
                )
            },
            "from airflow_barrier.cli.main import main\nprint(main(['pigeons']), 'pigeons')",
            "3 pigeons",
        ),
        (
            "tables/nest.py",
            NEW_CATALOG,
            {"tables/__init__.py": ("CATALOGS = {", f"CATALOGS = {{{ITS_ENTRY}", "")},
            NAMED_BY_A_CONNECTION,
            "nest://oak has {'s3.region': 'x', 'secret': 'a:b', 'twigs': '3'}.\n"
            "connection b: connection i: unknown extra 'scope'; expected some of: type, uri, twigs, or names that "
            "begin with adls., client., gcs., hdfs., s3.\n"
            "connection b: expected catalog_publish with a REST catalog only, found it with a nest, which has no "
            "choice; leave it out\n",
        ),
    ],
)
def test_a_new_one_is_a_file_and_a_registration(
    tmp_path: Path, file: str, content: str, registrations: Mapping[str, tuple[str, str, str]], use: str, said: str
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "airflow_barrier")
    (tmp_path / "airflow_barrier" / file).write_text(content)
    for registry, (before, after, imported) in registrations.items():
        path = tmp_path / "airflow_barrier" / registry
        text = path.read_text()
        assert before in text
        future = "from __future__ import annotations\n"
        path.write_text(text.replace(before, after, 1).replace(future, f"{future}{imported}\n", 1))
    assert said in said_by(use, tmp_path)


def said_by(code: str, folder: Path) -> str:
    """What a fresh interpreter prints, in which the package of ``folder``, if there is one, goes first."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(folder)!r})\n{code}"],
        cwd=folder,
        env={**os.environ, "AIRFLOW_HOME": str(folder / "airflow")},
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
