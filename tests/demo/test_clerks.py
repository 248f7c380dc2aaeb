"""What the clerks have written down, replayed, is what their database holds; and its readers find contradictions."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from demo import clerks, orders
from demo.clerks import Shop
from demo.places import Places
from demo.reports import InPostgreSQL, Joined, join
from tests.support.postgresql import PostgreSQL
from tests.support.waiting import patience, wait_for


@pytest.mark.drawn("demo")
def test_the_clerks_record_is_what_the_database_holds_also_after_it_was_killed(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.run.mkdir()
    with PostgreSQL() as server:
        server.start()
        shop = clerks.open_shop(server, "geheim")
        before = Shop.now(shop)
        until = datetime.now(timezone.utc) + timedelta(seconds=3)
        work = Thread(target=clerks.work, args=(shop, until, 4, places))
        work.start()
        wait_for("transactions", lambda: clerks.written_file(places).exists() and len(clerks.written(places)) > 30)
        server.kill()
        seen = len(clerks.written(places))
        server.start()
        work.join(patience())
        assert not work.is_alive()
        written, commits = clerks.written(places), clerks.commits(server)
        assert len(written) > seen, "they went on"
        [first, last] = clerks.replay(before, written, commits, [commits[0][0] - 1, commits[-1][0]])
        assert last == Shop.now(shop).tables()
        assert first != last
        assert {change.xid for change in written if change.rolled_back}.isdisjoint(xid for _, xid in commits)
        _check_readers(server, shop)


def _check_readers(server: PostgreSQL, shop: str) -> None:
    """Both questions have the same answer, also where what is asked contradicts itself."""
    reports = InPostgreSQL(server, "geheim", orders.TARGETS)
    reports.create()
    rows = Shop.now(shop).tables()
    with psycopg.connect(reports.url) as connection, connection.cursor() as cursor:
        for table, contents in rows.items():
            [*lines] = contents
            cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(lines[0]))})", lines)
    whole = Joined(rows["orders"].total(), 0)
    assert (join(reports.url, orders.QUESTION), _asked(reports.url)) == (whole, whole)
    for torn in (
        "UPDATE orders SET total = total + 1 WHERE id = (SELECT min(id) FROM orders)",
        "DELETE FROM items WHERE order_id = (SELECT max(id) FROM orders)",
        "UPDATE customers SET orders = orders + 1 WHERE customer = 1",
    ):
        with psycopg.connect(reports.url) as connection:
            connection.execute(torn)
            connection.commit()
            found, asked = join(reports.url, orders.QUESTION), _asked(reports.url)
            assert found is not None
            assert found.torn, torn
            assert asked.torn, torn


def _asked(url: str) -> Joined:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        rows: dict[str, list[dict[str, Any]]] = {
            table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in orders.TARGETS
        }
    return orders.contradictions(rows)
