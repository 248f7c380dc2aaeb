"""What any sink has to do: a suite that is played against a real one.

    class TestPigeons(Behaviour):
        @pytest.fixture
        def places(self, loft) -> Places:
            return lambda: PigeonLoft(loft.new())

A sink whose targets can be compared with the tables takes :class:`ComparingBehaviour`, which plays that, too.

A :class:`Place` is all that the suite has to know: how one delivers there, what readers find, and which calls to the
sink's system a process makes, at each of which the suite kills or stops it. Two tables, `prices` and `amounts`, are
delivered in one step.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pytest

from airflow_barrier.protocol.deliveries import CHANGE, Counts, Position, Remedy, Rows
from airflow_barrier.protocol.errors import (
    BarrierError,
    FencedDelivererError,
    LedgerError,
    Retryable,
    SinkUnavailableError,
)
from airflow_barrier.sinks.ledger import FORMAT, Deliverer
from airflow_barrier.sinks.port import Channel, Delivery
from tests.races.racers import PROCESSES
from tests.support.cases import cases
from tests.support.drawing import drawn
from tests.support.waiting import patience, wait_for

PRICES, AMOUNTS = TABLES = "shop.prices", "shop.amounts"
SCHEMAS = {
    PRICES: pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        ]
    ),
    AMOUNTS: pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("amount", pa.int64())]),
}
#: The columns of both tables' keys.
KEY = ("id",)
Row = Mapping[str, Any]


class Place(Protocol):
    """A sink's target, empty at first. It is sent to other processes, which deliver there, too."""

    #: what the sink can be fed with
    rows: ClassVar[Sequence[Rows]]

    def channel(self, rows: Rows, tables: Sequence[str] = TABLES, key: str = "id") -> Channel:
        """A channel of the sink `out`, by which these tables are delivered, with rows that this column tells apart."""
        ...

    def contents(self, table: str, rows: Rows) -> list[dict[str, Any]]:
        """What readers find, in the order in which it came where order can be seen. Where they find changes, these are
        applied, and an AssertionError tells of one that does not fit.
        """
        ...

    def left_over(self) -> list[str]:
        """What dead deliverers have left."""
        ...

    def forge(self, entry: str, value: object) -> None:
        """Have the ledger say ``value`` in this entry of the sink's record, as somebody else would have written it."""
        ...

    def watch(self, tell: Callable[[str], None]) -> None:
        """From now on, tell of each call that this process makes to the sink's system, before and after it."""
        ...


Places = Callable[[], Place]
#: What a superseded deliverer meets: a sink may also have ended its connection.
_FENCED = (FencedDelivererError, SinkUnavailableError)


@dataclass(frozen=True)
class Batches:
    """Rows, in batches of a size."""

    schema: pa.Schema
    rows: Sequence[Row]
    size: int = 1000

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(self.rows), self.size):
            yield pa.RecordBatch.from_pylist(list(self.rows[start : start + self.size]), schema=self.schema)


@dataclass(frozen=True)
class Step:
    """What both tables get with a barrier: rows, or changes, which are pairs of what became of a row and the row."""

    position: Position
    tables: Mapping[str, Sequence[Any]]
    whole: bool = False


def price(id_: int, name: str | None, cents: int) -> Row:
    at = datetime(2017, 1, 1, tzinfo=timezone.utc) + timedelta(hours=id_, microseconds=id_)
    return {"id": id_, "name": name, "price": Decimal(cents) / 100, "at": at}


def amount(id_: int, value: int) -> Row:
    return {"id": id_, "amount": value}


#: A first load, changes of one table alone, nothing, and changes of both; what one step makes another one needs.
CHANGES = (
    Step(
        Position(3, 0),
        {
            PRICES: [price(1, "bread", 250), price(2, None, 99), price(3, "", 100), price(4, "ham\n'é\"", 1)],
            AMOUNTS: [amount(1, 10), amount(2, 20)],
        },
        whole=True,
    ),
    Step(
        Position(4, 0),
        {
            PRICES: [
                ("insert", price(5, "milk", 120)),
                ("update", price(2, "salt", 98)),
                ("delete", {"id": 3}),
                ("insert", price(6, "tea", 800)),
            ],
            AMOUNTS: [],
        },
    ),
    Step(Position(6, 0), {PRICES: [], AMOUNTS: []}),
    Step(
        Position(7, 1),
        {
            PRICES: [("update", price(5, "milk", 121)), ("delete", {"id": 6}), ("insert", price(3, "back", 5))],
            AMOUNTS: [("update", amount(1, 11)), ("delete", {"id": 2})],
        },
    ),
)
#: The last barrier once more, as a revision has corrected it.
CORRECTION = Step(Position(7, 2), {PRICES: [("update", price(5, "milk", 119))], AMOUNTS: [("insert", amount(2, 7))]})
APPENDS = tuple(
    Step(
        Position(barrier, 0),
        {
            PRICES: [price(barrier * 10 + number, f"b{barrier}", number) for number in range(barrier)],
            AMOUNTS: [amount(barrier, 1), amount(barrier, 1)],  # no key tells these apart
        },
        whole=barrier == 2,
    )
    for barrier in (2, 3, 4)
)
TABLE = tuple(
    Step(Position(barrier, 0), {PRICES: [price(barrier, "the only one", barrier)], AMOUNTS: []}, whole=True)
    for barrier in (1, 2)
)
STEPS = {Rows.CHANGES: CHANGES, Rows.APPENDS: APPENDS, Rows.TABLE: TABLE}


def deliverer(topology: str = "shopping", incarnation: str = "first", sink: str = "out") -> Deliverer:
    return Deliverer(topology, incarnation, sink, f"task-{os.getpid()}")


def delivery(step: Step, rows: Rows, after: Position | None, size: int = 1000) -> Delivery:
    tables: dict[str, Batches] = {}
    for table, found in step.tables.items():
        schema = SCHEMAS[table]
        if rows is Rows.CHANGES and not step.whole:
            schema = schema.insert(0, pa.field(CHANGE, pa.string()))
            found = [{CHANGE: change, **row} for change, row in found]
        tables[table] = Batches(schema, found, size)
    timestamp = datetime(2017, 1, 1, tzinfo=timezone.utc) + timedelta(days=step.position.barrier_id - 1)
    barrier, revision = step.position.barrier_id, step.position.revision
    return Delivery(barrier, revision, timestamp, after, rows, tables if step.whole else (), tables)


def catch_up(channel: Channel, rows: Rows, steps: Sequence[Step], size: int = 1000) -> list[Mapping[str, Counts]]:
    """As the coordinator does it: see what fits, become the only one, ask what was delivered, deliver the rest.

    Whatever way rows come in, a sink says of each table that it changed as many as it was handed.
    """
    channel.validate(SCHEMAS)
    position = channel.open(deliverer()).position
    counts = []
    for step in steps:
        if position is None or step.position > position:
            handed = delivery(step, rows, position, size)
            counts.append(channel.deliver(handed))
            said = {table: sum(vars(told).values()) for table, told in counts[-1].items()}
            assert said == {table: sum(each.num_rows for each in batches) for table, batches in handed.tables.items()}
            position = step.position
    return counts


def expected(steps: Sequence[Step], rows: Rows, table: str) -> list[dict[str, Any]]:
    if rows is Rows.TABLE:
        return [dict(row) for row in steps[-1].tables[table]]
    if rows is Rows.APPENDS:
        return [dict(row) for step in steps for row in step.tables[table]]
    return applied(
        [("insert", row) for row in step.tables[table]] if step.whole else step.tables[table] for step in steps
    )


def applied(steps: Iterable[Sequence[tuple[str, Row]]]) -> list[dict[str, Any]]:
    """What changes come to. Raises AssertionError if one does not fit, as if one before it were missing or doubled."""
    found: dict[Any, dict[str, Any]] = {}
    for changes in steps:
        for change, row in changes:
            key = row["id"]
            assert change in ("insert", "update", "delete"), change
            assert (key in found) == (change != "insert"), f"{change} of {key} after {sorted(found)}"
            if change == "delete":
                del found[key]
            else:
                found[key] = dict(row)
    return [found[key] for key in sorted(found)]


def check(place: Place, steps: Sequence[Step], rows: Rows) -> None:
    for table in SCHEMAS:
        assert place.contents(table, rows) == expected(steps, rows, table), table


# --- another process ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blow:
    """What hits a process at its n-th call, counted from 0; None: nothing, it tells how many there are."""

    signal: int
    at: int | None


def _deliver_elsewhere(place: Place, rows: Rows, steps: Sequence[Step], blow: Blow, pipe: Connection) -> None:
    calls: list[str] = []

    def tell(call: str) -> None:
        calls.append(call)
        if len(calls) - 1 == blow.at:
            pipe.send(call)
            os.kill(os.getpid(), blow.signal)

    place.watch(tell)
    try:
        with place.channel(rows) as channel:
            said = "delivered" if catch_up(channel, rows, steps) else "nothing"
        tell("the end")
    except BarrierError as error:
        said = f"{'retry' if isinstance(error, Retryable) else 'failed'}: {type(error).__name__}: {error}"
    pipe.send((said, calls))


@contextmanager
def elsewhere(place: Place, rows: Rows, steps: Sequence[Step], blow: Blow) -> Iterator[tuple[Any, Connection]]:
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_deliver_elsewhere, args=(place, rows, steps, blow, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        process.close()
        ours.close()


def calls_of(place: Place, rows: Rows, steps: Sequence[Step]) -> list[str]:
    with elsewhere(place, rows, steps, Blow(signal.SIGKILL, None)) as (_, pipe):
        assert pipe.poll(patience()), "the other process does not answer"
        said, calls = pipe.recv()
    assert said == "delivered"
    return list(calls)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# --- the suite ------------------------------------------------------------------------------------


class Behaviour:
    """Played against what the fixture ``places`` makes. ``files``: those of the package that the sink is made of."""

    files: ClassVar[Sequence[str]] = ()

    def test_what_is_delivered_is_there_in_order(self, places: Places) -> None:
        with cases() as case:
            place = places()
            for rows in place.rows:
                with case(rows):
                    place = places()
                    steps = STEPS[rows]
                    for number in range(1, len(steps) + 1):
                        with place.channel(rows) as channel:
                            catch_up(channel, rows, steps[:number])
                        check(place, steps[:number], rows)

    def test_the_ledger_says_what_was_delivered_and_counts_are_told(self, places: Places) -> None:
        place = places()
        with place.channel(Rows.CHANGES) as channel:
            assert channel.validate(SCHEMAS) == {PRICES: KEY, AMOUNTS: KEY}
            assert channel.open(deliverer()).position is None
            position, told = None, []
            for step in CHANGES:
                told.append(channel.deliver(delivery(step, Rows.CHANGES, position)))
                position = step.position
        assert told == [
            {PRICES: Counts(inserted=4), AMOUNTS: Counts(inserted=2)},
            {PRICES: Counts(2, 1, 1), AMOUNTS: Counts()},
            {PRICES: Counts(), AMOUNTS: Counts()},
            {PRICES: Counts(1, 1, 1), AMOUNTS: Counts(0, 1, 1)},
        ]
        with place.channel(Rows.CHANGES) as channel:
            assert channel.open(deliverer()).position == CHANGES[-1].position
        with place.channel(Rows.CHANGES) as looking:
            assert looking.look(deliverer()).position == CHANGES[-1].position
        with place.channel(Rows.CHANGES) as channel:
            assert catch_up(channel, Rows.CHANGES, CHANGES) == [], "nothing is delivered twice"
        check(place, CHANGES, Rows.CHANGES)

    def test_looking_leaves_nothing(self, places: Places) -> None:
        place = places()
        with place.channel(Rows.CHANGES) as channel:
            channel.validate(SCHEMAS)
            assert channel.look(deliverer()).position is None
        assert place.left_over() == []
        for table in SCHEMAS:
            assert place.contents(table, Rows.CHANGES) == []

    def test_batches_of_every_size(self, places: Places) -> None:
        rows = [price(number, f"n{number}" * (number % 50), number) for number in range(1, 3_000)]
        step = Step(Position(1, 0), {PRICES: rows, AMOUNTS: []}, whole=True)
        with cases() as case:
            for size in (1, 7, 999, 5_000):
                with case(size):
                    place = places()
                    with place.channel(Rows.APPENDS) as channel:
                        catch_up(channel, Rows.APPENDS, [step], size)
                    check(place, [step], Rows.APPENDS)

    def test_a_correction_is_delivered_after_its_barrier(self, places: Places) -> None:
        place = places()
        for _ in range(2):
            with place.channel(Rows.CHANGES) as channel:
                catch_up(channel, Rows.CHANGES, [*CHANGES, CORRECTION])
            check(place, [*CHANGES, CORRECTION], Rows.CHANGES)

    def test_what_comes_out_of_order_is_refused(self, places: Places) -> None:
        place = places()
        with place.channel(Rows.CHANGES) as channel:
            catch_up(channel, Rows.CHANGES, CHANGES[:2])
        with cases() as case:
            for step, after in (
                (CHANGES[3], CHANGES[2].position),  # the one before is missing
                (CHANGES[2], None),  # as if nothing had been delivered
                (CHANGES[1], CHANGES[0].position),  # was delivered
            ):
                with case(step.position), place.channel(Rows.CHANGES) as channel:
                    channel.validate(SCHEMAS)
                    channel.open(deliverer())
                    with pytest.raises(BarrierError):
                        channel.deliver(delivery(step, Rows.CHANGES, after))
        check(place, CHANGES[:2], Rows.CHANGES)

    def test_who_opened_before_can_deliver_nothing(self, places: Places) -> None:
        place = places()
        with place.channel(Rows.CHANGES) as first, place.channel(Rows.CHANGES) as second:
            catch_up(first, Rows.CHANGES, CHANGES[:1])
            second.validate(SCHEMAS)
            assert second.open(deliverer()).position == CHANGES[0].position
            with pytest.raises(_FENCED):
                first.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
            check(place, CHANGES[:1], Rows.CHANGES)
            with place.channel(Rows.CHANGES) as third:
                assert third.look(deliverer()).position == CHANGES[0].position, "who looks supersedes nobody"
            second.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
        check(place, CHANGES[:2], Rows.CHANGES)

    def test_one_who_was_overtaken_learns_so(self, places: Places) -> None:
        place = places()
        with place.channel(Rows.CHANGES) as first, place.channel(Rows.CHANGES) as second:
            catch_up(first, Rows.CHANGES, CHANGES[:1])
            catch_up(second, Rows.CHANGES, CHANGES[:3])
            with pytest.raises(_FENCED):
                first.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
        check(place, CHANGES[:3], Rows.CHANGES)

    @pytest.mark.parametrize(
        "other",
        [("shopping", "second", "out"), ("banking", "first", "out"), ("shopping", "first", "other")],
        ids=["incarnation", "topology", "sink"],
    )
    def test_what_is_anothers_is_not_delivered_to(self, places: Places, other: tuple[str, str, str]) -> None:
        """Not by another MetaService, and not by a second sink that names the same targets."""
        place = places()
        with place.channel(Rows.CHANGES) as channel:
            catch_up(channel, Rows.CHANGES, CHANGES[:2])
        with place.channel(Rows.CHANGES) as channel:
            channel.validate(SCHEMAS)
            with pytest.raises(LedgerError):
                channel.open(deliverer(*other))
        with place.channel(Rows.CHANGES) as channel:  # which goes on
            catch_up(channel, Rows.CHANGES, CHANGES)
        check(place, CHANGES, Rows.CHANGES)

    def test_what_a_person_lets_it_adopt(self, places: Places) -> None:
        """The ledger of another incarnation, which cannot go on then; never that of another topology or sink."""
        place, recovered = _prepared(places, 2), deliverer(incarnation="recovered")
        with place.channel(Rows.CHANGES) as before:
            before.validate(SCHEMAS)
            before.open(deliverer())
            for other in (deliverer("banking"), deliverer(sink="other")):
                with place.channel(Rows.CHANGES) as channel:
                    channel.validate(SCHEMAS)
                    with pytest.raises(LedgerError):
                        channel.open(other, remedy=Remedy.ADOPT)
            before.deliver(delivery(CHANGES[2], Rows.CHANGES, CHANGES[1].position))  # whom they have not fenced
            for remedy in (Remedy.ADOPT, None):
                with place.channel(Rows.CHANGES) as channel:
                    channel.validate(SCHEMAS)
                    assert channel.open(recovered, remedy).position == CHANGES[2].position
            with pytest.raises(_FENCED):
                before.deliver(delivery(CHANGES[3], Rows.CHANGES, CHANGES[2].position))
        with place.channel(Rows.CHANGES) as channel:
            channel.validate(SCHEMAS)
            with pytest.raises(LedgerError):
                channel.open(deliverer())
        check(place, CHANGES[:3], Rows.CHANGES)

    @pytest.mark.parametrize(
        ("entry", "value", "said"),
        [
            ("format", FORMAT + 1, f"format {FORMAT}, found {FORMAT + 1}.* run the version"),
            ("incarnation", "other", "other.* sink adopt shopping out"),
            ("place", "elsewhere", "elsewhere.* sink adopt shopping out"),
        ],
        ids=["format", "incarnation", "place"],
    )
    def test_a_ledger_that_somebody_else_wrote_is_told(
        self, places: Places, entry: str, value: object, said: str
    ) -> None:
        """A newer version's by all; another MetaService's, or a copy's, until a person has decided."""
        place = _prepared(places, 2)
        place.forge(entry, value)
        for remedy in (None, Remedy.ADOPT) if entry == "format" else (None,):
            with place.channel(Rows.CHANGES) as channel, pytest.raises(LedgerError, match=said):
                channel.open(deliverer(), remedy)
        if entry == "format":
            place.forge(entry, FORMAT)
        else:
            with place.channel(Rows.CHANGES) as channel:
                channel.validate(SCHEMAS)
                assert channel.open(deliverer(), Remedy.ADOPT).position == CHANGES[1].position
        with place.channel(Rows.CHANGES) as channel:
            catch_up(channel, Rows.CHANGES, CHANGES)
        check(place, CHANGES, Rows.CHANGES)

    def test_a_sink_comes_back_with_one_table_more(self, places: Places) -> None:
        """The new one is delivered whole beside the other's changes, and goes on from there."""
        place = places()
        deliver_some(place, CHANGES[:2], [AMOUNTS])
        with place.channel(Rows.CHANGES) as channel:
            channel.validate(SCHEMAS)
            record = channel.open(deliverer())
            assert sorted((each.declared["table"], each.position) for each in record.targets.values()) == [
                (AMOUNTS, CHANGES[1].position),
                (PRICES, None),
            ]
            step = delivery(CHANGES[2], Rows.CHANGES, record.position)
            all_prices = Batches(SCHEMAS[PRICES], expected(CHANGES[:3], Rows.CHANGES, PRICES))
            channel.deliver(replace(step, tables={**step.tables, PRICES: all_prices}, whole=(PRICES,)))
        with place.channel(Rows.CHANGES) as channel:
            catch_up(channel, Rows.CHANGES, CHANGES)
        check(place, CHANGES, Rows.CHANGES)

    def test_a_table_that_was_left_out_goes_on_from_its_own_position(self, places: Places) -> None:
        place = places()
        with place.channel(Rows.CHANGES) as channel:
            catch_up(channel, Rows.CHANGES, CHANGES[:2])
        deliver_some(place, CHANGES[:3], [PRICES])
        with place.channel(Rows.CHANGES) as channel:
            record = channel.open(deliverer())
            assert record.position == CHANGES[2].position
            assert {each.declared["table"]: each.position for each in record.targets.values()} == {
                AMOUNTS: CHANGES[1].position,
                PRICES: CHANGES[2].position,
            }

    def test_a_target_that_is_declared_otherwise_is_told(self, places: Places) -> None:
        place = _prepared(places, 2)
        with place.channel(Rows.CHANGES, key="at") as channel:
            for remedy in (None, Remedy.ADOPT):
                with pytest.raises(LedgerError, match=r"to be declared as it was .*, found key \['at'\] instead of"):
                    channel.open(deliverer(), remedy)
        with place.channel(Rows.CHANGES) as channel:  # which goes on
            catch_up(channel, Rows.CHANGES, CHANGES)
        check(place, CHANGES, Rows.CHANGES)

    @pytest.mark.every_landing
    @pytest.mark.parametrize("before", [0, 1], ids=["the first load", "changes"])
    def test_killed_at_every_call(self, places: Places, before: int) -> None:
        """Another process delivers the rest: each row is there once, and nothing else is."""
        steps = CHANGES[: before + 1]
        calls = calls_of(_prepared(places, before), Rows.CHANGES, steps)
        with cases() as case:
            for number in self._part(calls, "killed"):
                with case(f"killed at {number}, {calls[number]}"):
                    place = _prepared(places, before)
                    with elsewhere(place, Rows.CHANGES, steps, Blow(signal.SIGKILL, number)) as (process, _):
                        process.join(patience())
                        assert process.exitcode == -signal.SIGKILL
                    with place.channel(Rows.CHANGES) as channel:
                        catch_up(channel, Rows.CHANGES, CHANGES[: before + 2])
                    check(place, CHANGES[: before + 2], Rows.CHANGES)
                    assert place.left_over() == []

    @pytest.mark.every_landing
    @pytest.mark.parametrize("first", ["opens", "delivers"])
    def test_stopped_at_every_call_while_another_one(self, places: Places, first: str) -> None:
        """... opens the sink, or has even delivered all: when the first one goes on, it changes nothing any more."""
        calls = calls_of(_prepared(places, 1), Rows.CHANGES, CHANGES[:2])
        with cases() as case:
            for number in self._part(calls, "stopped"):
                with case(f"stopped at {number}, {calls[number]}"):
                    place = _prepared(places, 1)
                    with elsewhere(place, Rows.CHANGES, CHANGES[:2], Blow(signal.SIGSTOP, number)) as (process, pipe):
                        assert pipe.poll(patience()), "the other process does not come to that call"
                        pipe.recv()
                        wait_for("the other process to stop", partial(is_stopped, process.pid))
                        with place.channel(Rows.CHANGES) as channel:
                            if first == "delivers":
                                catch_up(channel, Rows.CHANGES, CHANGES)
                            else:
                                channel.validate(SCHEMAS)
                            found = channel.open(deliverer()).position
                            os.kill(process.pid, signal.SIGCONT)
                            assert pipe.poll(patience()), "the other process does not answer"
                            said, _ = pipe.recv()
                        with place.channel(Rows.CHANGES) as channel:
                            now = channel.open(deliverer()).position
                            # Who had not opened the sink before is the newest, and may deliver.
                            assert (now, said.partition(":")[0]) in (
                                (found, "retry"),
                                (found, "nothing"),
                                (max(found, CHANGES[1].position), "delivered"),
                            )
                            catch_up(channel, Rows.CHANGES, CHANGES)
                    check(place, CHANGES, Rows.CHANGES)

    def _part(self, calls: Sequence[str], how: str) -> list[int]:
        return drawn(range(len(calls)), f"{how} while delivering ({type(self).__name__})", lambda _: self.files)


class ComparingBehaviour(Behaviour):
    """Also of a sink that can compare its targets with the tables, as `redeliver` has it do. Others refuse that."""

    def test_what_differs_is_changed(self, places: Places) -> None:
        place, last = _prepared(places, 2), CHANGES[-1].position
        now = {table: expected(CHANGES, Rows.CHANGES, table) for table in SCHEMAS}
        former = {PRICES: [1, 2, 3, 1, 4, 5, 6], AMOUNTS: [1]}  # by which amount 2 is a row of others
        told = []
        with place.channel(Rows.CHANGES) as channel:
            channel.validate(SCHEMAS)
            after = channel.open(deliverer(), remedy=Remedy.ADOPT).position
            for _ in range(2):  # then at the barrier that was delivered last, and nothing differs
                told.append(channel.deliver(_compared(last, after, now, former)))
                after = last
        assert told == [
            {PRICES: Counts(1, 1, 1), AMOUNTS: Counts(0, 1, 0)},
            {PRICES: Counts(), AMOUNTS: Counts()},
        ]
        with place.channel(Rows.CHANGES) as channel:
            assert channel.open(deliverer()).position == last
        assert place.contents(PRICES, Rows.CHANGES) == now[PRICES]
        assert place.contents(AMOUNTS, Rows.CHANGES) == [*now[AMOUNTS], amount(2, 20)]


def _compared(
    position: Position, after: Position | None, now: Mapping[str, Sequence[Row]], former: Mapping[str, Sequence[int]]
) -> Delivery:
    """All rows of both tables, and the keys of those that may have been delivered."""
    keys = {
        table: Batches(pa.schema([SCHEMAS[table].field("id")]), [{"id": id_} for id_ in ids])
        for table, ids in former.items()
    }
    return replace(delivery(Step(position, now, whole=True), Rows.CHANGES, after), former=keys)


def deliver_some(place: Place, steps: Sequence[Step], tables: Sequence[str]) -> None:
    """What of these steps is lacking, to a sink that is declared with these tables alone."""
    with place.channel(Rows.CHANGES, tables) as channel:
        channel.validate({table: SCHEMAS[table] for table in tables})
        position = channel.open(deliverer()).position
        for step in steps:
            if position is None or step.position > position:
                some = replace(step, tables={table: step.tables[table] for table in tables})
                channel.deliver(delivery(some, Rows.CHANGES, position))
                position = step.position


def _prepared(places: Places, steps: int) -> Place:
    place = places()
    if steps:
        with place.channel(Rows.CHANGES) as channel:
            catch_up(channel, Rows.CHANGES, CHANGES[:steps])
    return place
