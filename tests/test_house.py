"""How the package is built: what stands on what, what a DAG file loads, what a newcomer has to touch, and its words.

Each bound is what was reached. Who makes it smaller tightens it.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from inspect import getmembers, isclass
from pathlib import Path

import grimp
import pytest

import airflow_barrier
from airflow_barrier import protocol
from airflow_barrier.protocol import errors
from tests.support.waiting import patience

PACKAGE = Path(airflow_barrier.__file__).parent
DAGS = Path(__file__).parent.parent / "dags"
GLOSSARY = Path(__file__).parent.parent / "docs" / "glossary.md"
#: How docstrings begin that name neither a thing nor what is done.
HEADLESS = re.compile(
    r"(what|who|whose|which|where|when|whether|why|how|that|those|whatever|whoever|if|of|by|for|in|from|to|with|without"
    r"|as|at|on|up|until|between|beside|behind|since|among|about|before|after)\b",
    re.IGNORECASE,
)
#: Of the package, to parse dags/shopping.py. Airflow's DAG processor does so for every DAG file, again and again.
MODULES_OF_A_DAG_FILE = 49


def test_no_module_stands_on_itself() -> None:
    """Imports inside functions count, and those for type checkers."""
    graph = grimp.build_graph("airflow_barrier", cache_dir=None)
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
    assert not [name for name in loaded if name.startswith("airflow_barrier.coordinator")]
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
NEW_SINK = """
from dataclasses import dataclass

@dataclass(frozen=True)
class PigeonSink:
    kind = "pigeons"
    name: str

    @classmethod
    def of(cls, declared):
        return cls(declared.name)
"""
#: How others find it: by an entry point of the distribution that has the file.
PIGEON_POST = """
[airflow_barrier.sinks]
pigeons = pigeon_post:PigeonSink
hawks = pigeon_post:HawkSink

[airflow_barrier.sources]
pigeons = pigeon_post:PigeonSink
"""
USED_SINK = """
from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.sinks import sink_of
print(sink_of(SinkDeclaration("loft", "roof", "pigeons", {})))
"""
NEW_ROUTE = """
from fastapi import APIRouter
from airflow_barrier.api.access import Told

router = APIRouter(route_class=Told)

@router.get("/v1/pigeons")
def pigeons() -> int:
    return 3
"""
USED_ROUTE = """
from fastapi import FastAPI
from fastapi.testclient import TestClient
from airflow_barrier.api.app import create_api

app = FastAPI()
app.include_router(create_api(lambda: None))
print(TestClient(app).get("/v1/pigeons").json(), "pigeons")
"""
NEW_COMMAND = """
from airflow_barrier.cli.frame import Command

PIGEONS = Command("pigeons", "Count pigeons.", (), lambda options: 3)
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
        properties=ConnectionProperties(frozenset({"twigs"}), credentials=("secret",)),
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
                    "_ADAPTERS = {",
                    '_ADAPTERS = {\n    "pigeons": "airflow_barrier.sources.pigeons:Pigeons",',
                    "",
                )
            },
            "from airflow_barrier.protocol.topology import ExternalSource\n"
            "from airflow_barrier.sources import source_of\nprint(source_of(ExternalSource('loft', 'pigeons')))",
            "Pigeons(name='loft')",
        ),
        (
            "sinks/pigeons.py",
            NEW_SINK,
            {
                "sinks/__init__.py": (
                    "_ADAPTERS = {",
                    '_ADAPTERS = {\n    "pigeons": "airflow_barrier.sinks.pigeons:PigeonSink",',
                    "",
                )
            },
            USED_SINK,
            "PigeonSink(name='loft')",
        ),
        (
            "api/pigeons.py",
            NEW_ROUTE,
            {
                "api/app.py": (
                    "    topologies.router,",
                    "    topologies.router,\n    pigeons.router,",
                    "from airflow_barrier.api import pigeons",
                )
            },
            USED_ROUTE,
            "3 pigeons",
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


def test_another_distribution_brings_a_source_or_a_sink(tmp_path: Path) -> None:
    (tmp_path / "pigeon_post.py").write_text(NEW_SINK)
    metadata = tmp_path / "pigeon_post-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(PIGEON_POST)
    code = f"""{USED_SINK}
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources import source_of
print(source_of(ExternalSource("roof", "pigeons")))
try:
    sink_of(SinkDeclaration("loft", "roof", "hawks", {{}}))
except ConfigurationError as error:
    print(error)
"""
    assert said_by(code, tmp_path).splitlines() == [
        "PigeonSink(name='loft')",
        "PigeonSink(name='roof')",
        "sink loft: expected an adapter at entry point hawks = pigeon_post:HawkSink of group airflow_barrier.sinks, "
        "found module 'pigeon_post' has no attribute 'HawkSink'; "
        "correct the entry point, and install its package again",
    ]


def test_a_docstring_begins_with_a_verb_or_the_name_of_the_thing() -> None:
    """A relative clause or a preposition leaves open which thing it is about."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    headless = [
        f"{file.relative_to(PACKAGE)}:{node.lineno} {node.name}: {told.splitlines()[0]}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, kinds) and (told := ast.get_docstring(node))
        if HEADLESS.match(told)
    ]
    assert headless == []


def test_the_glossary_has_each_state_and_no_other() -> None:
    """Who gives a barrier, table, attempt or revision another state says what it means; one that is gone leaves the
    glossary, too.
    """
    states = {
        name.removesuffix("State").lower(): [state.value for state in found]
        for module in pkgutil.iter_modules(protocol.__path__, f"{protocol.__name__}.")
        for name, found in getmembers(import_module(module.name), isclass)
        if issubclass(found, Enum) and name.endswith("State")
    }
    assert states, "found no state to look for"
    explained = {
        column.removeprefix("state of ").split()[-1]: terms
        for column, terms in glossary()
        if column.startswith("state of ")
    }
    assert explained == states


def test_the_glossary_has_what_errors_shout() -> None:
    """Users meet errors before they meet documents: a word in capitals is one of ours, and has to be found."""
    shouted = {
        word
        for _, error in getmembers(errors, isclass)
        if error.__module__ == errors.__name__
        for word in re.findall(r"\b[A-Z]{3,}\b", error.__doc__ or "")
    } - {"API", "DAG", "SQL"}
    assert "COMMITTING" in shouted
    assert shouted <= {term for _, terms in glossary() for term in terms}


def test_the_glossary_speaks_of_names_that_are_there() -> None:
    """A word in code type is called so where it is passed or kept; a name that was changed is changed there, too."""
    trees = [ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {node.arg for node in nodes if isinstance(node, ast.arg)}
    names |= {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    told = {term.strip("`") for _, terms in glossary() for term in terms if term.startswith("`")}
    assert told
    assert told <= names


def glossary() -> list[tuple[str, list[str]]]:
    """The tables: what the first column is called, and the terms in it."""
    tables: list[tuple[str, list[str]]] = []
    rows = [line.split(" | ")[0].removeprefix("| ") for line in GLOSSARY.read_text().splitlines() if line[:2] == "| "]
    for cell in rows:
        if cell == "word" or cell.startswith("state of "):
            tables.append((cell, []))
        elif cell != "---":
            tables[-1][1].extend(cell.split(", "))
    return tables


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
