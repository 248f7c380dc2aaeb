"""Many rows over many barriers, while deliverers and the server are killed: none lost, none twice, in order."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from tests.delivering.feed import Feed, State, reporting_on
from tests.delivering.lane import Lane
from tests.delivering.pairs import Pair, make_pair
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Hold, Proxy
from tests.support.reporting import report
from tests.support.waiting import patience

_BARRIERS, _ROWS, _NEW, _ROUNDS, _SEED = 20, 5000, 500, 12, 20261126
#: Statements of opening a sink, at least; and of one barrier, at least.
_OPENING, _DELIVERING = 20, 15
_AUDITED = """
    CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO audit (target, "userId", value)
            VALUES (TG_TABLE_NAME, coalesce(NEW."userId", OLD."userId"), NEW.value);
        RETURN NULL;
    END $$
"""


def state(day: int) -> State:
    """All values are new at each barrier, and some keys go and come."""
    return {(user, 1): day for user in range(day * _NEW, day * _NEW + _ROWS)}


@pytest.mark.drawn("deliveries of many rows")
@pytest.mark.touches("sinks/postgresql/channel.py", "coordinator/delivering.py")
@pytest.mark.timeout(600)
def test_no_row_is_lost_comes_twice_or_out_of_order(feed: Feed, own_postgresql: PostgreSQL, warm: Lane) -> None:
    for day in range(1, _BARRIERS + 1):
        feed.commit(state(day))
    random = Random(_SEED)
    with reporting_on(own_postgresql) as reporting, Proxy(own_postgresql.port) as proxy:
        pair = make_pair(feed, reporting, "pair")
        reporting.run(
            'CREATE TABLE audit (at bigint GENERATED ALWAYS AS IDENTITY, target text, "userId" bigint, value bigint)'
        )
        reporting.run(_AUDITED)
        for target in pair.targets.values():
            reporting.run(
                f"CREATE TRIGGER audits AFTER INSERT OR UPDATE OR DELETE ON {target} "
                "FOR EACH ROW EXECUTE FUNCTION audited()"
            )
        pair.deliver(1)
        servers = sum(disturb(pair, proxy, own_postgresql, warm, random) for _ in range(_ROUNDS))
        position = pair.record.position
        assert position is not None
        pair.deliver(_BARRIERS)
        pair.check(*range(1, _BARRIERS + 1))
        found = check_audit(pair)
    report(
        f"deliveries: {found:,} changes of rows over {_BARRIERS} barriers, none lost, twice or out of order; {_ROUNDS} "
        f"deliverers and {servers} servers were killed, up to {position}"
    )


def disturb(pair: Pair, proxy: Proxy, server: PostgreSQL, warm: Lane, random: Random) -> bool:
    """A deliverer that comes some way, and is killed: at once, or after its server was. Returns whether that was."""
    known = pair.record.position
    lacking = _BARRIERS - (known.barrier_id if known else 0)
    hold = Hold(random.randrange(_OPENING, _OPENING + 1 + _DELIVERING * min(lacking, 5)), random.random() < 0.5)
    kills_server = random.random() < 0.4
    with proxy.watching(hold):
        child = warm.start(pair.order(_BARRIERS, proxy.port, pause=0.5))
        assert hold.come.wait(patience())
    if kills_server:
        server.kill()
        server.start()
        again = Hold(random.randrange(_OPENING))
        with proxy.watching(again):
            hold.go_on.set()
            assert again.come.wait(patience())
            warm.kill(child)
            again.go_on.set()
    else:
        warm.kill(child)
        hold.go_on.set()
    return kills_server


def check_audit(pair: Pair) -> int:
    """Each row of each target went through just the values of its barriers, in order; returns how many changes."""
    rows = pair.reporting.run('SELECT target, "userId", value FROM audit ORDER BY at')
    found: dict[tuple[str, int], list[int | None]] = defaultdict(list)
    for target, user, value in rows:
        found[target, user].append(value)
    expected: dict[tuple[str, int], list[int | None]] = defaultdict(list)
    for target in pair.targets.values():
        for day in range(1, _BARRIERS + 1):
            before, now = state(day - 1) if day > 1 else {}, state(day)
            for user, _ in now:
                expected[target, user].append(day)
            for user, _ in before.keys() - now.keys():
                expected[target, user].append(None)
    assert found == expected
    return len(rows)
