"""Where results go: what JSON can hold of them, and which tables they may go into."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from airflow_barrier.operators._at import barrier_or_time
from airflow_barrier.protocol.errors import ConfigurationError, TableClaimedError
from airflow_barrier.reading.spark_results import target_of
from airflow_barrier.reading.values import json_value
from tests.support.cases import cases

MORNING = datetime(2026, 1, 5, 6, tzinfo=timezone.utc)


IN_JSON = (
    (None, None),
    (True, True),
    (2**63, 2**63),
    ("text", "text"),
    (0.5, 0.5),
    (float("nan"), "NaN"),
    (float("-inf"), "-Infinity"),
    (float("inf"), "Infinity"),
    (Decimal("1E+2"), "100"),
    (Decimal("8.3333300"), "8.3333300"),
    (MORNING.astimezone(timezone(timedelta(hours=2))), "2026-01-05T06:00:00.000000+00:00"),
    (datetime(2026, 1, 5, 6), "2026-01-05T06:00:00.000000"),  # noqa: DTZ001 - a time without a zone
    (date(2026, 1, 5), "2026-01-05"),
    (time(6, 30), "06:30:00"),
    (timedelta(minutes=1), 60.0),
    (b"\x00\xff", "AP8="),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ({date(2026, 1, 5): [Decimal("1.10"), (1, None)]}, {"2026-01-05": ["1.10", [1, None]]}),
)


def test_values_are_exact_in_json() -> None:
    with cases() as case:
        for value, expected in IN_JSON:
            with case(value):
                found = json_value(value)
                assert found == expected
                assert type(found) is type(expected)
                assert json.loads(json.dumps(found, allow_nan=False)) == expected


TOPOLOGIES = {"shop.price": "shopping", "eu.shop.price": "europe"}


def target(name: str) -> tuple[str, ...]:
    return target_of(name, ["lake", "iceberg"], TOPOLOGIES)


def test_a_result_goes_into_a_table_beside_the_topologies() -> None:
    for name, parts in (
        ("lake.reports.daily", ("lake", "reports", "daily")),
        ("lake.eu.reports.daily", ("lake", "eu", "reports", "daily")),
        ("`lake`.`the reports`.`a.b``c`", ("lake", "the reports", "a.b`c")),
        ("other.shop.price", ("other", "shop", "price")),
        ("lake.shop.prices", ("lake", "shop", "prices")),
    ):
        assert target(name) == parts


@pytest.mark.kills("results-go-beside-the-topology")
def test_a_table_of_a_topology_is_written_by_its_jobs_only() -> None:
    with cases() as case:
        for name, owner in (
            ("lake.shop.price", "shopping"),
            ("LAKE.Shop.`Price`", "shopping"),
            ("lake.eu.shop.price", "europe"),
            ("lake.shop.price.branch_x", "shopping"),
            ("Iceberg.shop.price", "shopping"),
        ):
            said = f"which belongs to topology {owner} and is written by its jobs"
            with case(name), pytest.raises(TableClaimedError, match=said):
                target(name)


def test_what_is_no_whole_name_of_a_table() -> None:
    said = r"into: expected a table's whole name, catalog\.namespace\.table, found"
    with cases() as case:
        for name in ("daily", "reports.daily", "", "lake.reports.daily; DROP TABLE x", "lake..daily", "f(1)", "None"):
            with case(name), pytest.raises(ConfigurationError, match=said):
                target(name)


def test_which_barrier_is_meant() -> None:
    assert barrier_or_time(None) is None
    assert barrier_or_time(3) == barrier_or_time("3") == 3
    assert barrier_or_time("2026-01-05 06:00:00+00:00") == barrier_or_time("2026-01-05T06:00:00Z") == MORNING
    assert barrier_or_time(MORNING) is MORNING
    for text in ("None", "", "2026-01-05", "2026-01-05T06:00:00", "-1", "yesterday"):
        with pytest.raises(
            ConfigurationError, match="at: expected a barrier's id, or a time in ISO 8601 with its zone"
        ):
            barrier_or_time(text)
