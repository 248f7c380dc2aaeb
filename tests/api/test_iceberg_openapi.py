"""Whatever Iceberg's routes allow is asked: an engine is always told in its own words, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
import schemathesis
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from sqlalchemy import MetaData, select

from airflow_barrier.api.access import bound
from airflow_barrier.api.iceberg import create_iceberg, router
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.store import MetaService
from tests.api.asking import Rights
from tests.api.scene import SECRET, declared, everything
from tests.support.shop import PRICE, make_shop

#: Of each route.
_EXAMPLES = 60
_CONFIG = SchemathesisConfig.from_dict({"generation": {"with-security-parameters": False}})
_WAREHOUSES = ("shopping", "shopping@ReadCommitted", "shopping@read_uncommitted", "shopping@b1", "shopping@b1.r0")
_HOSTILE = ("\x00", "a\x00b", "%2f", "\u202e", "shop\x1fuser", "'; --", 400 * "x", "shop.repeatable_read.b1.r0.900s.1")


class Error(msgspec.Struct, forbid_unknown_fields=True):
    """As Iceberg's clients read it."""

    message: str
    type: str
    code: int


class Told(msgspec.Struct, forbid_unknown_fields=True):
    error: Error


@pytest.fixture
def deployments(meta: MetaService, tmp_path: Path) -> Iterator[dict[str, Deployment]]:
    """One with rows in its tables; and one with all that a MetaService can hold, whose tables have none of it."""
    (there := tmp_path / "there").mkdir()
    shop = make_shop(Settings.embedded(str(there)))
    shop.process_all(first := shop.open(1), [{"amount": 100, "price": 1000}])
    shop.commit(first)
    everything(declared(meta))
    yield {"there": shop.deployment, "prod": replace(shop.deployment, meta=meta)}
    shop.deployment.close()


@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")  # GET and HEAD of one route, in no OpenAPI of ours
def test_whatever_is_asked_is_told_in_icebergs_words(deployments: dict[str, Deployment], tmp_path: Path) -> None:
    metas = {name: each.meta for name, each in deployments.items()}
    rights = Rights(metas, deployments.__getitem__)
    app = FastAPI()
    app.include_router(router, dependencies=[Depends(bound(rights.access))])
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=_CONFIG)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == sum(len(route.methods) for route in router.routes if isinstance(route, APIRoute))
    ours = FastAPI()
    ours.include_router(create_iceberg(rights.access))
    assert ours.openapi()["paths"] == {}, "they are Iceberg's"

    def ask(operation: Any, user: str, body: bytes = b"", **given: Any) -> Any:
        case = operation.Case(**given)
        sent = {"data": body} if operation.method in ("post", "put", "patch", "delete") else {}
        answer = case.call(headers={"user": user}, **sent)
        where = f"{operation.label} {given}: {answer.status_code}"
        assert answer.status_code < 500, where
        if answer.status_code >= 400 and not (operation.method == "head" and not answer.content):
            where += f" {answer.text}"
            assert answer.text.startswith('{"error":'), where
            told = msgspec.json.decode(answer.content, type=Told).error
            assert told.code == answer.status_code, where
            assert told.type.endswith("Exception"), where
            assert told.message, where
        return answer

    (config,) = (each for each in operations if each.path.endswith("/v1/config"))
    connected = [
        ask(config, "admin", path_parameters={"deployment": name}, query={"warehouse": warehouse}).json()
        for name, warehouses in (("there", _WAREHOUSES), ("prod", ("shop", "shop@ReadUncommitted", "shop@b1.r0")))
        for warehouse in warehouses
    ]
    prefixes = [each["overrides"]["prefix"] for each in connected]
    before = _written(deployments, tmp_path)
    statuses: set[int] = set()
    for operation in operations:
        _ask_anything(operation, prefixes, statuses, ask)
    assert statuses >= {200, 204, 400, 403, 404, 410}
    assert _written(deployments, tmp_path) == before


def _ask_anything(operation: Any, prefixes: list[str], statuses: set[int], ask: Any) -> None:
    """What is there, what is said to be there by who does not know it, and anything."""
    anything = operation.as_strategy()
    known = {
        "deployment": st.sampled_from(("there", "prod", "there", "prod", "other")),
        "prefix": st.sampled_from((*prefixes, *(each + "0" for each in prefixes), *_HOSTILE)),
        "namespace": st.sampled_from(("shop", SECRET, *_HOSTILE)),
        "table": st.sampled_from((PRICE.partition(".")[2], "orders", "ratio", *_HOSTILE)),
        "rest": st.sampled_from(("", "config/", "transactions/commit", *_HOSTILE)),
    }
    asked = {
        "warehouse": st.sampled_from((*_WAREHOUSES, "shop", "shop@b2", "shop@b3", *_HOSTILE)),
        "parent": st.sampled_from(("shop", SECRET, *_HOSTILE)),
    }

    @settings(
        max_examples=_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def asking(data: st.DataObject) -> None:
        case = data.draw(anything)

        def chosen(found: Any, there: dict[str, st.SearchStrategy[str]]) -> dict[str, Any]:
            kept = {name: value for name, value in (found or {}).items() if data.draw(st.booleans())}
            return {**{name: data.draw(there[name]) for name in found or {}}, **kept}

        path = chosen(case.path_parameters, known)
        query = chosen(case.query, asked)
        parts = "/".join(map(unquote, path.values())).split("/")
        # by these an address is not below ours
        assume("/" not in unquote(path["deployment"]) and not {".", ".."}.intersection(parts))
        assume(not any("\n" in part for part in parts))
        user = data.draw(st.sampled_from(("admin", "nobody")))
        statuses.add(
            ask(operation, user, data.draw(st.binary(max_size=20)), path_parameters=path, query=query).status_code
        )

    asking()


def _written(deployments: dict[str, Deployment], folder: Path) -> object:
    """All that is stored, but for leases."""
    rows = {}
    for name, deployment in deployments.items():
        with deployment.meta._db.transaction(write=False) as connection:
            stored = MetaData()
            stored.reflect(connection)
            for table in stored.sorted_tables:
                if table.name != "barrier_lease":
                    rows[name, table.name] = sorted(map(repr, connection.execute(select(table))))
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and ".db" not in path.name}
    return rows, files
