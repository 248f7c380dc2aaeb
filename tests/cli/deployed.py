"""A shop whose barriers are in every state that the command line has something to say about."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.store import MetaService
from tests.support.shop import Shop, make_shop

CONN_ID = "shop_cli"


@dataclass
class Deployed:
    """Barriers 1 and 2 are COMMIT, 3 and 4 OPEN, 5 is ABORTED.

    At 3 `load` is PROCESSED, `price` runs and `amount` has not begun.
    """

    shop: Shop
    settings: Settings

    @property
    def meta(self) -> MetaService:
        return self.shop.deployment.meta

    @property
    def environment(self) -> dict[str, str]:
        """The connection as a person would put it into the environment."""
        return environment_of(self.settings)


def environment_of(settings: Settings) -> dict[str, str]:
    """The connection of any deployment."""
    extra = {
        "warehouse": settings.warehouse,
        "metaservice_url": settings.metaservice_url,
        "catalog_uri": settings.catalog_uri,
        "catalog_password": settings.catalog_password,
    }
    connection = {"conn_type": "barrier", "password": settings.metaservice_password, "extra": extra}
    return {f"AIRFLOW_CONN_{CONN_ID.upper()}": json.dumps(connection)}


def deploy(settings: Settings) -> Deployed:
    shop = make_shop(settings)
    for day in (1, 2):
        barrier = shop.open(day)
        shop.process_all(barrier, [{"amount": day, "price": 2}])
        shop.commit(barrier)
    third = shop.open(3)
    shop.process(third, "load", [{"amount": 3, "price": 2}])
    shop.begin(third, "price")
    shop.open(4)
    shop.deployment.meta.barriers.abort("shopping", shop.open(5).barrier_id, "landed twice", "test")
    return Deployed(shop, settings)


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*arguments: str) -> Said:
    """`airflow-barrier` in this process, piped."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments, "--conn-id", CONN_ID])
    return Said(code, out.getvalue(), err.getvalue())


def as_json(value: Any) -> Any:
    """What a record of the MetaService has to be in JSON."""

    def other(value: object) -> str:
        assert isinstance(value, datetime), value
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds")

    def fields(value: Any) -> Any:
        if isinstance(value, (Mapping, datetime)):
            return value
        return {name: each for name, each in asdict(value).items() if name != "nonce"}

    records = [fields(each) for each in value] if isinstance(value, (list, tuple)) else fields(value)
    return json.loads(json.dumps(records, default=other))
