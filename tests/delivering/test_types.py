"""Every type that the sink takes, there and back; keys of many types; targets with names and friends of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from math import inf, nan
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from psycopg.types.json import set_json_loads
from sqlalchemy import make_url

from airflow_barrier.protocol.deliveries import CHANGE, DELETE, INSERT, UPDATE, Counts, Position, Rows
from airflow_barrier.protocol.errors import LedgerError, RowRefusedError, SinkRefusedError
from airflow_barrier.sinks.ledger import Deliverer
from airflow_barrier.sinks.port import Delivery, RowBatches
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from airflow_barrier.sinks.postgresql.rows import Part
from tests.delivering.feed import AMOUNT, MONDAY, PRICE, Reporting, make_targets, reporting_on
from tests.support.postgresql import USER, PostgreSQL

TABLE = "shop.things"
UTC, VIENNA = timezone.utc, timezone(timedelta(hours=2))
LONGEST = "größe_" + "x" * 55  # 63 bytes


@pytest.fixture(scope="module")
def database(postgresql: PostgreSQL) -> Iterator[Reporting]:
    with reporting_on(postgresql) as reporting:
        yield reporting


@pytest.fixture
def reporting(database: Reporting, postgresql: PostgreSQL) -> Iterator[Reporting]:
    """The module's database, as a new one is: making one for each of so many tests takes a third of their time."""
    yield database
    postgresql.run(f'ALTER ROLE {USER} IN DATABASE "{make_url(database.url).database}" RESET ALL')
    database.run("DROP SCHEMA public CASCADE")
    database.run("CREATE SCHEMA public")
    make_targets(database)


@dataclass(frozen=True)
class Batches:
    """:class:`~airflow_barrier.sinks.port.RowBatches` of rows in memory, a few at a time."""

    schema: pa.Schema
    rows: Sequence[Mapping[str, Any]]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from pa.Table.from_pylist([dict(row) for row in self.rows], self.schema).to_batches(max_chunksize=2)


@dataclass
class Thing:
    """One target, and what it has received."""

    reporting: Reporting
    schema: pa.Schema
    target: str = "things"
    key: Sequence[str] | None = None
    name: str = "things"
    ledger: str = "airflow_barrier_ledger"
    kind: Rows = Rows.CHANGES
    position: Position | None = None

    def deliver(self, rows: Sequence[Mapping[str, Any]] | pa.RecordBatch) -> Counts:
        """All of it, if nothing was delivered yet; else changes, with what becomes of each row in it."""
        whole = self.position is None
        changes = not whole and self.kind is Rows.CHANGES
        schema = self.schema.insert(0, pa.field(CHANGE, pa.string())) if changes else self.schema
        number = 1 if self.position is None else self.position.barrier_id + 1
        tables: dict[str, RowBatches] = {
            TABLE: Part(rows) if isinstance(rows, pa.RecordBatch) else Batches(schema, rows)
        }
        with self._connected() as channel:
            self.position = channel.open(Deliverer("shopping", "this", self.name, "test")).position
            delivery = Delivery(number, 0, MONDAY, self.position, self.kind, tables if whole else (), tables)
            counts: Counts = channel.deliver(delivery)[TABLE]
        self.position = delivery.position
        return counts

    def redeliver(self, rows: Sequence[Mapping[str, Any]]) -> Counts:
        """Have the target compared with all of its rows."""
        assert self.position is not None
        keys = Batches(pa.schema([self.schema.field("id")]), [{"id": row["id"]} for row in self.rows()])
        tables, former = {TABLE: Batches(self.schema, rows)}, {TABLE: keys}
        number = self.position.barrier_id + 1
        with self._connected() as channel:
            channel.open(Deliverer("shopping", "this", self.name, "test"))
            delivery = Delivery(number, 0, MONDAY, self.position, Rows.CHANGES, tables, tables, former)
            counts: Counts = channel.deliver(delivery)[TABLE]
        self.position = delivery.position
        return counts

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        sink = PostgreSQLSink("reporting", table=self.target, name=self.name, key=self.key, ledger=self.ledger)
        declared = sink.declare(TABLE, self.kind, "shopping_dag")
        with sink.connect(declared, self.reporting.credentials()) as channel:
            channel.validate({TABLE: self.schema})
            yield channel

    def create(self) -> None:
        """As the sink says that it is done."""
        with pytest.raises(SinkRefusedError) as refused, self._connected():
            pass
        _, _, statement = str(refused.value).partition("create it:\n")
        self.reporting.run(statement)

    def rows(self) -> list[dict[str, Any]]:
        """By their keys."""
        with self.reporting.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            set_json_loads(partial(json.loads, parse_float=Decimal), connection)
            cursor = connection.execute(f'SELECT * FROM "{self.target}" ORDER BY 1')
            assert cursor.description is not None
            return [dict(zip((column.name for column in cursor.description), row, strict=True)) for row in cursor]


TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("yes", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("middle", pa.int32()),
        ("large", pa.int64()),
        ("exact", pa.decimal128(20, 5)),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("words", pa.string()),
        ("many_words", pa.large_string()),
        ("bytes", pa.binary()),
        ("many_bytes", pa.large_binary()),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("instant", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
    ]
)
LEAST, MOST = map(datetime.fromisoformat, ("0001-01-01T00:00:00.000001", "9999-12-31T23:59:59.999999"))
LEAP = datetime.fromisoformat("2000-02-29")
ODD = 'it\'s "so",\r\n\\N \\. \t\u2028 NULL \U0001f600 ä \u00a0'


def row(id_: int, *values: Any) -> dict[str, Any]:
    return dict(zip(TYPES.names, (id_, *values), strict=True))


THINGS = [
    row(1, *(None,) * 16),
    row(
        2, True, -128, -(2**15), -(2**31), -(2**63), Decimal("-999999999999999.99999"), -inf, -inf, "", "", b"", b"",
        LEAST.date(), time(0), LEAST.replace(tzinfo=UTC), LEAST,
    ),
    row(
        3, False, 127, 2**15 - 1, 2**31 - 1, 2**63 - 1, Decimal("999999999999999.99999"), inf, inf, ODD, ODD * 500,
        bytes(range(256)), b"\\x00", MOST.date(), time(23, 59, 59, 999999), MOST.replace(tzinfo=UTC), MOST,
    ),
    row(
        4, True, 0, 0, 0, 0, Decimal("0.00001"), nan, nan, "\\N", "NULL", b"\\N", b"\0\n", date(1970, 1, 1), time(1),
        datetime(2026, 3, 29, 2, 30, tzinfo=VIENNA), datetime.fromisoformat("2026-03-29T02:30:00"),
    ),
    row(
        5, True, 1, 1, 1, 1, Decimal("1.5"), 3.4028234663852886e38, 5e-324, "\\.", " ", b" ", b'"', date(1582, 10, 15),
        time(1, 2, 3, 4), datetime(1900, 1, 1, tzinfo=UTC), datetime.fromisoformat("1900-01-01"),
    ),
    row(
        6, False, -1, -1, -1, -1, Decimal("-1.5"), 1.401298464324817e-45, 0.1 + 0.2, '"', ",", b",", b"'",
        date(1969, 12, 31), time(12), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), LEAP,
    ),
]  # fmt: skip


def plain(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as Arrow keeps them, where NaN equals NaN."""
    return [repr(each) for each in pa.Table.from_pylist([dict(row) for row in rows], TYPES).to_pylist()]


def test_every_type_arrives_as_it_is(reporting: Reporting) -> None:
    thing = Thing(reporting, TYPES, key=["id"])
    thing.create()
    assert thing.deliver(THINGS) == Counts(inserted=6)
    assert plain(thing.rows()) == plain(THINGS)
    turned = [{**values, "id": id_} for id_, values in zip(range(1, 7), [*THINGS[1:], THINGS[0]], strict=True)]
    changed = thing.deliver(
        [
            *({CHANGE: UPDATE, **each} for each in turned[:5]),
            {CHANGE: DELETE, "id": 6},
            {CHANGE: INSERT, **turned[5], "id": 7},
        ]
    )
    assert changed == Counts(inserted=1, updated=5, deleted=1)
    assert plain(thing.rows()) == plain([*turned[:5], {**turned[5], "id": 7}])


@pytest.mark.parametrize("first", [True, False])
def test_a_character_that_postgresql_does_not_know_is_refused_by_the_key(reporting: Reporting, first: bool) -> None:
    thing = Thing(reporting, pa.schema([("id", pa.int64()), ("words", pa.string())]), key=["id"])
    thing.create()
    good, bad = [{"id": number, "words": "a"} for number in range(1, 10)], {"id": 77, "words": "a\0b"}
    if not first:
        thing.deliver(good)
    rows = [*good, bad] if first else [{CHANGE: INSERT, **bad}, {CHANGE: DELETE, "id": 1}]
    with pytest.raises(RowRefusedError, match=r"in the row with id=77\. Nothing of this barrier was delivered"):
        thing.deliver(rows)
    assert thing.rows() == ([] if first else good)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("us", tz="UTC"), [LEAST.replace(tzinfo=UTC), datetime(2026, 1, 5, 1, 2, 3, 4, UTC)]),
        (pa.timestamp("us"), [LEAST, LEAST.replace(microsecond=2)]),
        (pa.decimal128(38, 10), [Decimal("0.1"), Decimal("9999999999999999999999999999.0000000001")]),
        (pa.string(), ["", ODD]),
        (pa.string(), ["\\.", "\\N"]),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
        (pa.bool_(), [False, True]),
        (pa.int8(), [-128, 127]),
    ],
    ids=str,
)
@pytest.mark.parametrize("more", [True, False], ids=["values", "keys only"])
def test_rows_are_found_by_keys_of(reporting: Reporting, kind: pa.DataType, values: list[Any], more: bool) -> None:
    schema = pa.schema([("key", kind), *([("value", pa.int64())] if more else [])])
    thing = Thing(reporting, schema, key=["key"])
    thing.create()
    one, other = ({"key": value, **({"value": 1} if more else {})} for value in values)
    thing.deliver([one, other])
    changes = [{CHANGE: DELETE, "key": one["key"]}]
    if more:
        changes.append({CHANGE: UPDATE, **other, "value": 2})
    assert thing.deliver(changes) == Counts(updated=int(more), deleted=1)
    assert thing.rows() == [{**other, **({"value": 2} if more else {})}]
    assert thing.deliver([{CHANGE: INSERT, **one}]) == Counts(inserted=1)
    assert len(thing.rows()) == 2


INNER = pa.struct(
    [
        ("exact", pa.decimal128(38, 10)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("double", pa.float64()),
        ("words", pa.string()),
        ("numbers", pa.list_(pa.int64())),
    ]
)
NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("struct", INNER),
        ("structs", pa.large_list(INNER)),
        ("labels", pa.map_(pa.string(), pa.map_(pa.string(), INNER))),
        ("pairs", pa.map_(pa.int32(), pa.decimal128(10, 2))),
    ]
)
EXACT = {
    "exact": Decimal("1234567890123456789012345678.0123456789"),
    "at": datetime(2026, 3, 29, 2, 30, 0, 7, UTC),
    "local": LEAST,
    "day": LEAST.date(),
    "raw": b"\0\xff",
    "double": 0.1 + 0.2,
    "words": ODD,
    "numbers": [2**63 - 1, None, -(2**63)],
}
AS_JSON = {
    **EXACT,
    "at": "2026-03-29T02:30:00.000007Z",
    "local": "0001-01-01T00:00:00.000001",
    "day": "0001-01-01",
    "raw": "AP8=",
    "double": Decimal("0.30000000000000004"),
}
NOTHING = dict.fromkeys(EXACT)
STRUCTS = [
    {"id": 1},
    {"id": 2, "struct": NOTHING, "structs": [], "labels": [], "pairs": []},
    {
        "id": 3,
        "struct": EXACT,
        "structs": [EXACT, None, NOTHING],
        "labels": [("ä", [("", EXACT)]), ('"', None)],
        "pairs": [(-1, Decimal("0.10")), (2, None)],
    },
]
STRUCTS_AS_JSON = [
    {"id": 1, "struct": None, "structs": None, "labels": None, "pairs": None},
    {"id": 2, "struct": NOTHING, "structs": [], "labels": {}, "pairs": []},
    {
        "id": 3,
        "struct": AS_JSON,
        "structs": [AS_JSON, None, NOTHING],
        "labels": {"ä": {"": AS_JSON}, '"': None},
        "pairs": [[-1, Decimal("0.10")], [2, None]],
    },
]


@pytest.mark.parametrize("column", ["jsonb", "json"])
def test_structs_lists_and_maps_arrive_as_json(reporting: Reporting, column: str) -> None:
    thing = Thing(reporting, NESTED, key=["id"])
    thing.create()
    for name in NESTED.names[1:]:
        reporting.run(f"ALTER TABLE things ALTER {name} TYPE {column}")
    assert thing.deliver(STRUCTS) == Counts(inserted=3)
    assert thing.rows() == STRUCTS_AS_JSON
    changes = [{CHANGE: UPDATE, **STRUCTS[2], "id": 1}, {CHANGE: DELETE, "id": 2}, {CHANGE: UPDATE, "id": 3}]
    assert thing.deliver(changes) == Counts(updated=2, deleted=1)
    assert thing.rows() == [{**STRUCTS_AS_JSON[2], "id": 1}, {**STRUCTS_AS_JSON[0], "id": 3}]
    reporting.run("UPDATE things SET struct = NULL, pairs = '[[-1, 0.1], [2, null]]' WHERE id = 1")
    assert thing.redeliver(STRUCTS) == Counts(inserted=1, updated=2)
    assert thing.rows() == STRUCTS_AS_JSON
    assert thing.redeliver(STRUCTS) == Counts(), "what is the same is left alone"


LISTS = {
    "words": (pa.string(), "text", ["", ODD, "NULL", "{", None]),
    "middle": (pa.int32(), "bigint", [-(2**31), 2**31 - 1, None]),
    "exact": (pa.decimal128(20, 5), "numeric(20, 5)", [Decimal("-999999999999999.99999"), Decimal("0.00000")]),
    "double": (pa.float64(), "double precision", [inf, -inf, 5e-324, 0.1 + 0.2]),
    "single": (pa.float32(), "real", [-0.25, inf]),
    "yes": (pa.bool_(), "boolean", [True, False, None]),
    "raw": (pa.binary(), "bytea", [b"", b'\0\\"', bytes(range(256))]),
    "day": (pa.date32(), "date", [LEAST.date(), MOST.date()]),
    "clock": (pa.time64("us"), "time", [time(0), time(23, 59, 59, 999999)]),
    "instant": (pa.timestamp("us", tz="UTC"), "timestamptz", [LEAST.replace(tzinfo=UTC), MOST.replace(tzinfo=UTC)]),
    "local": (pa.timestamp("us"), "timestamp", [LEAST, MOST, None]),
    "texts_of_json": (pa.string(), "json", ["1", None]),
}


def test_lists_arrive_in_arrays(reporting: Reporting) -> None:
    columns = ", ".join(f"{name} {kind}[]" for name, (_, kind, _) in LISTS.items())
    reporting.run(f"CREATE TABLE things (id bigint PRIMARY KEY, {columns})")
    thing = Thing(
        reporting, pa.schema([("id", pa.int64()), *((name, pa.list_(of)) for name, (of, *_) in LISTS.items())])
    )
    full = {name: values for name, (_, _, values) in LISTS.items()}
    rows = [{"id": 1, **full}, {"id": 2, **dict.fromkeys(LISTS)}, {"id": 3, **{name: [] for name in LISTS}}]
    arrived = [{**each, "texts_of_json": each["texts_of_json"] and [1, None]} for each in rows]
    assert thing.deliver(rows) == Counts(inserted=3)
    assert thing.rows() == arrived
    assert thing.deliver([{CHANGE: UPDATE, **rows[0], "id": 2}]) == Counts(updated=1)
    assert thing.rows() == [arrived[0], {**arrived[0], "id": 2}, arrived[2]]
    assert thing.redeliver(rows) == Counts(updated=1)
    assert thing.rows() == arrived


@pytest.mark.parametrize(
    ("kind", "odd", "said"),
    [
        (pa.struct([("n", pa.list_(pa.float64()))]), {"n": [1.0, nan]}, "column words: JSON cannot hold a NaN or an"),
        (pa.map_(pa.string(), pa.float32()), [("a", -inf)], "column words: JSON cannot hold a NaN or an infinity"),
        (pa.map_(pa.int64(), pa.list_(pa.map_(pa.string(), pa.int8()))), [(1, [[("a", 1), ("a", 2)]])],
         "column words: JSON cannot hold two entries of one key in a map"),
        (pa.list_(pa.string()), ["a\0b"], "unsupported Unicode escape sequence"),
    ],
    ids=["struct", "map", "key twice", "character"],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_what_json_cannot_hold_is_refused_by_the_key(
    reporting: Reporting, kind: pa.DataType, odd: Any, said: str, first: bool
) -> None:
    thing = Thing(reporting, pa.schema([("id", pa.int64()), ("words", kind)]), key=["id"])
    thing.create()
    good: list[dict[str, Any]] = [{"id": number, "words": None} for number in range(1, 10)]
    if not first:
        thing.deliver(good)
    bad = {"id": 77, "words": odd}
    with pytest.raises(
        RowRefusedError, match=rf"{said}.* in the row with id=77\. Nothing of this barrier was delivered"
    ):
        thing.deliver([*good, bad] if first else [{CHANGE: INSERT, **bad}, {CHANGE: DELETE, "id": 1}])
    assert thing.rows() == ([] if first else good)


@pytest.mark.parametrize(
    ("kind", "column", "said"),
    [
        (pa.struct([("a", pa.int8())]), "text", r"expected a column that holds every struct<a: int8>, such as jsonb"),
        (pa.list_(pa.int64()), "integer[]", "such as jsonb, found integer\\[\\]"),
        (pa.list_(pa.decimal128(10, 2)), "numeric(10, 1)[]", "such as jsonb, found numeric\\[\\]"),
        (pa.list_(pa.list_(pa.int64())), "bigint[]", "such as jsonb, found bigint\\[\\]"),
        (pa.string(), "text[]", "such as text, found text\\[\\]"),
        (pa.list_(pa.timestamp("ns")), "jsonb", r"expected a type that JSON can hold exactly, found timestamp\[ns\]"),
    ],
    ids=str,
)
def test_columns_that_do_not_hold_what_is_nested(
    reporting: Reporting, kind: pa.DataType, column: str, said: str
) -> None:
    reporting.run(f"CREATE TABLE things (id bigint PRIMARY KEY, odd {column})")
    with pytest.raises(SinkRefusedError, match=said):
        Thing(reporting, pa.schema([("id", pa.int64()), ("odd", kind)])).deliver([])


def test_what_is_nested_is_no_key(reporting: Reporting) -> None:
    reporting.run("CREATE TABLE things (id bigint[] PRIMARY KEY)")
    with pytest.raises(SinkRefusedError, match="expected a key of plain values, found structs, lists or maps: id"):
        Thing(reporting, pa.schema([("id", pa.list_(pa.int64()))])).deliver([])


CODES = pa.schema([("id", pa.int64()), ("code", pa.string())])


@pytest.mark.parametrize(
    ("unique", "taken"),
    [("UNIQUE", False), ("UNIQUE DEFERRABLE", True), ("UNIQUE DEFERRABLE INITIALLY DEFERRED", True)],
)
def test_two_rows_that_swap_a_unique_value(reporting: Reporting, unique: str, taken: bool) -> None:
    reporting.run(f"CREATE TABLE things (id bigint PRIMARY KEY, code text {unique})")
    thing = Thing(reporting, CODES)
    before = [{"id": 1, "code": "a"}, {"id": 2, "code": "b"}]
    thing.deliver(before)
    swapped = [{"id": 1, "code": "b"}, {"id": 2, "code": "a"}]
    changes = [{CHANGE: UPDATE, **each} for each in swapped]
    if taken:
        assert thing.deliver(changes) == Counts(updated=2)
        assert thing.rows() == swapped
    else:
        with pytest.raises(RowRefusedError, match=r"things_code_key\": Key \(code\)=\(\w\) already exists"):
            thing.deliver(changes)
        assert thing.rows() == before


def test_what_is_refused_only_at_the_end_is_said_of_the_right_target(reporting: Reporting) -> None:
    reporting.run("ALTER TABLE amount ADD UNIQUE (value) DEFERRABLE INITIALLY DEFERRED")
    schema = pa.schema([("userId", pa.int64()), ("itemId", pa.int32()), ("value", pa.int64())])
    sink = PostgreSQLSink("reporting", name="pair")
    declared = sink.declare({AMOUNT: "amount", PRICE: "price"}, Rows.CHANGES, "shopping_dag")
    rows = Batches(schema, [{"userId": user, "itemId": 1, "value": 5} for user in (1, 2)])
    with sink.connect(declared, reporting.credentials()) as channel:
        channel.validate(dict.fromkeys((AMOUNT, PRICE), schema))
        channel.open(Deliverer("shopping", "this", "pair", "test"))
        tables = dict.fromkeys((AMOUNT, PRICE), rows)
        delivery = Delivery(1, 0, MONDAY, None, Rows.CHANGES, tables, tables)
        with pytest.raises(
            RowRefusedError, match=r"expected target public\.amount .*Key \(value\)=\(5\) already exists"
        ):
            channel.deliver(delivery)
    assert reporting.rows("amount") == reporting.rows("price") == {}


def test_a_key_that_is_null_is_refused(reporting: Reporting) -> None:
    reporting.run("CREATE TABLE things (id bigint PRIMARY KEY, code text)")
    thing = Thing(reporting, CODES)
    with pytest.raises(RowRefusedError, match=r'null value in column "id".*in the row with id=None'):
        thing.deliver([{"id": 1, "code": "a"}, {"id": None, "code": "b"}])
    assert thing.rows() == []


def test_a_unique_index_that_takes_nulls_is_no_key(reporting: Reporting) -> None:
    reporting.run("CREATE TABLE things (id bigint UNIQUE, code text)")
    with pytest.raises(SinkRefusedError, match="NOT NULL"):
        Thing(reporting, CODES, key=["id"]).deliver([])


def test_the_longest_names_in_letters_of_any_language(reporting: Reporting) -> None:
    assert len(LONGEST.encode()) == 63
    thing = Thing(reporting, pa.schema([("ключ", pa.int64()), (LONGEST, pa.string())]), target=LONGEST, key=["ключ"])
    thing.create()
    thing.deliver([{"ключ": 1, LONGEST: "a"}])
    thing.deliver([{CHANGE: UPDATE, "ключ": 1, LONGEST: "b"}])
    assert thing.rows() == [{"ключ": 1, LONGEST: "b"}]


def test_names_with_a_percent_sign(reporting: Reporting) -> None:
    schema = pa.schema([("a %s", pa.int64()), ("100%", pa.string())])
    thing = Thing(reporting, schema, target="% of", key=["a %s"], name="100%", ledger="%s {} %(at)s")
    thing.create()
    thing.deliver([{"a %s": 1, "100%": "a"}, {"a %s": 2, "100%": "a"}])
    thing.deliver([{CHANGE: UPDATE, "a %s": 1, "100%": "b"}, {CHANGE: INSERT, "a %s": 3}, {CHANGE: DELETE, "a %s": 2}])
    assert thing.rows() == [{"a %s": 1, "100%": "b"}, {"a %s": 3, "100%": None}]
    assert reporting.run('SELECT sink, barrier_id FROM "%s {} %(at)s"') == [("100%", 2)]
    other = Thing(reporting, schema, target="% of", key=["a %s"], name="other %s", ledger="%s {} %(at)s")
    with pytest.raises(LedgerError, match="found that sink 100% of shopping delivers to") as refused:
        other.deliver([])
    reporting.run(str(refused.value).partition("forget it: ")[2])
    assert other.deliver([]) == Counts()


def test_a_column_whose_name_postgresql_would_cut_is_told(reporting: Reporting) -> None:
    thing = Thing(reporting, pa.schema([("id", pa.int64()), (LONGEST + "yz", pa.string())]), key=["id"])
    reporting.run(f'CREATE TABLE things (id bigint PRIMARY KEY, "{LONGEST}" text)')
    with pytest.raises(SinkRefusedError, match=r"expected a column größe_x+yz, found none"):
        thing.deliver([])


def test_what_hangs_on_a_target_stays(reporting: Reporting) -> None:
    reporting.run("CREATE TABLE things (id bigint PRIMARY KEY, code text)")
    reporting.run("CREATE INDEX of_others ON things (code)")
    reporting.run("CREATE VIEW codes AS SELECT code FROM things")
    reporting.run("GRANT SELECT ON things TO PUBLIC")
    reporting.run("CREATE TABLE log (at bigint GENERATED ALWAYS AS IDENTITY, what text)")
    reporting.run(
        "CREATE FUNCTION logged() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO log (what) VALUES (TG_OP || coalesce(NEW.id, OLD.id)); RETURN NULL; END $$"
    )
    reporting.run(
        "CREATE TRIGGER logs AFTER INSERT OR UPDATE OR DELETE ON things FOR EACH ROW EXECUTE FUNCTION logged()"
    )
    (before,) = reporting.run(
        "SELECT oid, relfilenode, relacl::text, relhastriggers FROM pg_class WHERE relname = 'things'"
    )
    thing = Thing(reporting, CODES)
    thing.deliver([{"id": 1, "code": "a"}, {"id": 2, "code": "b"}])
    changes = [
        {CHANGE: INSERT, "id": 3, "code": "c"},
        {CHANGE: UPDATE, "id": 2, "code": "x"},
        {CHANGE: DELETE, "id": 1},
    ]
    thing.deliver(changes)
    assert reporting.run("SELECT code FROM codes ORDER BY 1") == [("c",), ("x",)]
    assert [what for (what,) in reporting.run("SELECT what FROM log ORDER BY at")] == [
        "INSERT1", "INSERT2", "DELETE1", "UPDATE2", "INSERT3",
    ]  # fmt: skip
    (after,) = reporting.run(
        "SELECT oid, relfilenode, relacl::text, relhastriggers FROM pg_class WHERE relname = 'things'"
    )
    assert after == before, "nor was it truncated, which would give it another file"


@pytest.mark.kills("loaded-as-sent")
@pytest.mark.parametrize(
    "way", ["first", "appended", "inserted", "updated", "deleted", "compared", "put back", "taken away"]
)
@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("RETURN NULL", "a trigger or rule of the target left it out"),
        ("RAISE 'not %', NEW", "RaiseException"),
        ("RAISE 'not %', NEW USING ERRCODE = 'ZZ777'", "DatabaseError"),
        ("RAISE 'not %', NEW USING ERRCODE = 'check_violation'", "CheckViolation"),
    ],
    ids=["keeps silent", "raises", "raises its own", "raises as a constraint does"],
)
def test_a_row_that_a_trigger_keeps_out_is_refused_by_the_key(
    reporting: Reporting, does: str, said: str, way: str
) -> None:
    """Whichever way it comes or goes: what PostgreSQL says that it changed is what was sent."""
    reporting.run("CREATE TABLE things (id bigint PRIMARY KEY, code text)")
    kind = Rows.APPENDS if way == "appended" else Rows.CHANGES
    thing = Thing(reporting, CODES, kind=kind)
    good = [{"id": number, "code": "a"} for number in range(1, 6)]
    bad, old = {"id": 77, "code": "secret"}, {"id": 77, "code": "b"}
    if way != "first":
        thing.deliver(good if way in ("appended", "inserted", "put back") else [*good, old])
    reporting.run(
        "CREATE FUNCTION keeps_out() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF 77 IN (OLD.id, NEW.id) THEN {does}; END IF; RETURN coalesce(NEW, OLD); END $$"
    )
    reporting.run(
        "CREATE TRIGGER keeps_out BEFORE INSERT OR UPDATE OR DELETE ON things FOR EACH ROW EXECUTE FUNCTION keeps_out()"
    )
    before = thing.rows()
    where = "" if way == "taken away" else ", in the row with id=77"
    kinds = {"inserted": INSERT, "updated": UPDATE, "deleted": DELETE}
    rows = [*([] if way == "appended" else good), *([] if way == "taken away" else [bad])]
    if way in kinds:
        rows = [{CHANGE: UPDATE, "id": 1, "code": "c"}, {CHANGE: kinds[way], **bad}]
    deliver = thing.redeliver if way in ("compared", "put back", "taken away") else thing.deliver
    with pytest.raises(RowRefusedError, match=rf"{said}.*{where}.*Nothing of this barrier was delivered") as refused:
        deliver(rows)
    assert ("secret" in str(refused.value)) == (way == "appended")
    assert thing.rows() == before


def test_an_index_that_cannot_hold_a_value_is_no_outage(reporting: Reporting) -> None:
    reporting.run("CREATE TABLE things (id bigint PRIMARY KEY, code text)")
    reporting.run("CREATE INDEX of_others ON things (code)")
    long = "".join(hashlib.sha256(b"%d" % number).hexdigest() for number in range(200))
    with pytest.raises(RowRefusedError, match=r"index row requires \d+ bytes, .* in the row with id=2\."):
        Thing(reporting, CODES).deliver([{"id": 1, "code": "a"}, {"id": 2, "code": long}])


@pytest.mark.parametrize(("of_role", "kept"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
def test_settings_of_the_role_change_nothing(
    reporting: Reporting, postgresql: PostgreSQL, of_role: str, kept: str
) -> None:
    """Neither what is kept nor, unless it is stronger, that COMMIT is durable."""
    for setting in ("client_encoding = LATIN1", "array_nulls = off", f"synchronous_commit = {of_role}"):
        postgresql.run(f'ALTER ROLE {USER} IN DATABASE "{make_url(reporting.url).database}" SET {setting}')
    reporting.run(
        "CREATE TABLE things (id bigint PRIMARY KEY, code text, many text[], "
        "waits text DEFAULT current_setting('synchronous_commit'))"
    )
    thing = Thing(reporting, CODES.append(pa.field("many", pa.list_(pa.string()))))
    rows = [{"id": number, "code": "Zo\u00eb", "many": ["\u00eb", None]} for number in (1, 2)]
    thing.deliver(rows[:1])
    thing.deliver([{CHANGE: INSERT, **rows[1]}])
    assert thing.rows() == [{**each, "waits": kept} for each in rows]
    assert reporting.run("SELECT DISTINCT length(code) FROM things") == [(3,)]


@pytest.mark.parametrize("first", [True, False])
def test_a_character_that_the_database_lacks_is_refused_by_the_key(postgresql: PostgreSQL, first: bool) -> None:
    url = postgresql.url(f"latin_{uuid4().hex}")
    name = make_url(url).database
    postgresql.run(f"CREATE DATABASE {name} OWNER {USER} TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'")
    postgresql.run(f"GRANT CREATE ON SCHEMA public TO {USER}", database=url)
    thing = Thing(Reporting(url), CODES, key=["id"])
    thing.create()
    good = [{"id": 1, "code": "Zo\u00eb"}]
    if not first:
        thing.deliver(good)
    bad = {"id": 77, "code": "5 \u20ac"}
    with pytest.raises(RowRefusedError, match=r"has no equivalent in encoding .LATIN1., in the row with id=77\."):
        thing.deliver([*good, bad] if first else [{CHANGE: INSERT, **bad}])
    assert thing.rows() == ([] if first else good)


TEXTS = pa.list_(pa.string())


@pytest.mark.kills("kept-as-sent")
@pytest.mark.parametrize(
    ("kind", "column", "kept", "lost"),
    [
        (pa.string(), "varchar(3)", "abc", "abc "),
        (pa.string(), "character(3)", "ab", "ab "),
        (pa.string(), "short", "ab ", "abc "),
        (pa.string(), "shorter", "ab", "ab "),
        (TEXTS, "varchar(3)[]", ["abc", None], ["a", "abc "]),
        (TEXTS, "character(3)[]", ["abc"], ["ab "]),
    ],
    ids=str,
)
@pytest.mark.parametrize("way", ["first", "changed", "compared", "appended"])
def test_a_value_that_a_column_would_cut_is_refused_by_the_key(
    reporting: Reporting, kind: pa.DataType, column: str, kept: Any, lost: Any, way: str
) -> None:
    """It is cast to the column's type, as PostgreSQL keeps it, and compared with what was sent."""
    reporting.run("CREATE DOMAIN short AS varchar(3) NOT NULL")
    reporting.run("CREATE DOMAIN shortest AS character(3)")
    reporting.run("CREATE DOMAIN shorter AS shortest CHECK (VALUE <> '')")
    reporting.run(f"CREATE TABLE things (id bigint{'' if way == 'appended' else ' PRIMARY KEY'}, odd {column})")
    rows_are = Rows.APPENDS if way == "appended" else Rows.CHANGES
    thing = Thing(reporting, pa.schema([("id", pa.int64()), ("odd", kind)]), kind=rows_are)
    good, bad = [{"id": number, "odd": kept} for number in (1, 2, 3)], {"id": 77, "odd": lost}
    if way != "first":
        thing.deliver(good)
    before = thing.rows()
    send = thing.redeliver if way == "compared" else thing.deliver
    change = {CHANGE: INSERT} if way == "changed" else {}
    where = "" if way == "appended" else ", in the row with id=77"
    with pytest.raises(RowRefusedError, match=rf"column odd \(.*\) would cut or round one{where}\. Nothing"):
        send([*({**change, **each, "id": each["id"] + 10} for each in good), {**change, **bad}])
    assert thing.rows() == before
    if way == "changed":
        assert thing.deliver([{CHANGE: DELETE, "id": 1}, {CHANGE: UPDATE, "id": 2, "odd": kept}]) == Counts(0, 1, 1)
    if way == "compared":
        assert thing.redeliver(good) == Counts()


def test_keys_of_columns_with_a_length(reporting: Reporting) -> None:
    reporting.run("CREATE TABLE things (id character(3) PRIMARY KEY, code varchar(3))")
    thing = Thing(reporting, pa.schema([("id", pa.string()), ("code", pa.string())]))
    thing.deliver([{"id": "a", "code": "x"}, {"id": "abc", "code": "x"}])
    assert thing.deliver([{CHANGE: UPDATE, "id": "a", "code": "y"}, {CHANGE: DELETE, "id": "abc"}]) == Counts(0, 1, 1)
    assert thing.redeliver([{"id": "a", "code": "y"}]) == Counts()
    assert thing.rows() == [{"id": "a  ", "code": "y"}]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.timestamp("us", "UTC"), "timestamptz(0)"),
        (pa.timestamp("us"), "timestamp(3)"),
        (pa.time64("us"), "time(5)"),
        (pa.time64("ns"), "time"),
        (pa.list_(pa.timestamp("us")), "timestamp(0)[]"),
        (pa.decimal128(20, 6), "money2"),
        (pa.decimal128(20, 6), "money3"),
        (pa.timestamp("us", "UTC"), "seconds"),
    ],
    ids=str,
)
def test_columns_that_would_round(reporting: Reporting, kind: pa.DataType, column: str) -> None:
    for domain in ("money2 AS numeric(10, 2)", "money3 AS money2", "seconds AS timestamptz(0)"):
        reporting.run(f"CREATE DOMAIN {domain}")
    reporting.run(f"CREATE TABLE things (id bigint PRIMARY KEY, odd {column})")
    with pytest.raises(SinkRefusedError, match="column odd: expected a column that holds every"):
        Thing(reporting, pa.schema([("id", pa.int64()), ("odd", kind)])).deliver([])


@pytest.mark.parametrize(
    ("odd", "kind", "said"),
    [
        ([b"a", b"\xff"], pa.string(), "invalid byte sequence for encoding .UTF8."),
        ([[b"a"], [b"\xff"]], TEXTS, "column odd: an array cannot hold bytes that are no UTF-8"),
        ([{"a": b"a"}, {"a": b"\xff"}], pa.struct([("a", pa.string())]), "JSON cannot hold bytes that are no UTF-8"),
        ([0, -719528], pa.date32(), "date/time field value out of range"),
        ([0, -735000], pa.date32(), "time zone displacement out of range"),
        ([[0], [-719528]], pa.list_(pa.date32()), "an array cannot hold a time beyond years 1 to 9999"),
    ],
    ids=["text", "texts", "struct", "year 0", "before Christ", "years"],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_value_that_python_has_no_object_for_is_refused_by_the_key(
    reporting: Reporting, odd: list[Any], kind: pa.DataType, said: str, first: bool
) -> None:
    """It is what Spark may write."""
    column = {TEXTS: "text[]", pa.list_(pa.date32()): "date[]", pa.string(): "text", pa.date32(): "date"}.get(
        kind, "jsonb"
    )
    reporting.run(f"CREATE TABLE things (id bigint PRIMARY KEY, odd {column})")
    thing = Thing(reporting, pa.schema([("id", pa.int64()), ("odd", kind)]))
    raw = pa.array(odd)
    batch = pa.record_batch({"id": pa.array([1, 77]), "odd": cast_blindly(raw, kind)})
    if not first:
        thing.deliver([])
        batch = pa.record_batch(
            {CHANGE: pa.array([INSERT, INSERT]), **dict(zip(("id", "odd"), batch.columns, strict=True))}
        )
    with pytest.raises(RowRefusedError, match=rf"{said}, in the row with id=77\. Nothing"):
        thing.deliver(batch)


def cast_blindly(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Without a look at what they are."""
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(values.offsets, cast_blindly(values.values, kind.value_type))
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([cast_blindly(values.field(0), kind.field(0).type)], ["a"])
    return values.cast(pa.int32()).cast(kind) if pa.types.is_date(kind) else values.cast(kind, safe=False)


def test_a_barrier_of_when_there_was_another_column(reporting: Reporting) -> None:
    """Who is behind delivers each barrier with the columns that it had."""
    reporting.run("CREATE TABLE things (id bigint PRIMARY KEY, code text, note text)")
    thing = Thing(reporting, CODES)
    older = CODES.append(pa.field("note", pa.string()))
    (batch,) = pa.Table.from_pylist([{"id": 1, "code": "a", "note": "b"}], older).to_batches()
    thing.deliver(batch)
    thing.deliver([{CHANGE: UPDATE, "id": 1, "code": "c"}])
    assert thing.rows() == [{"id": 1, "code": "c", "note": "b"}]


LINKS = pa.schema([("id", pa.int64()), ("other", pa.int64())])
MANY, ONE = "shop.a_many", "shop.b_one"


@pytest.mark.parametrize(
    "ways",
    ["REFERENCES b_one", "REFERENCES b_one ON DELETE RESTRICT", "REFERENCES b_one DEFERRABLE INITIALLY IMMEDIATE"],
)
def test_targets_that_refer_to_each_other_and_to_themselves(reporting: Reporting, ways: str) -> None:
    """Whatever their names: rows come after those that they refer to, and go before."""
    reporting.run("CREATE TABLE b_one (id bigint PRIMARY KEY, other bigint REFERENCES b_one)")
    reporting.run(f"CREATE TABLE a_many (id bigint PRIMARY KEY, other bigint {ways})")
    sink = PostgreSQLSink("reporting", name="pair")
    declared = sink.declare({MANY: "a_many", ONE: "b_one"}, Rows.CHANGES, "shopping_dag")
    changes = LINKS.insert(0, pa.field(CHANGE, pa.string()))

    def step(position: Position | None, many: list[dict[str, Any]], one: list[dict[str, Any]]) -> Position:
        schema = LINKS if position is None else changes
        tables = {MANY: Batches(schema, many), ONE: Batches(schema, one)}
        with sink.connect(declared, reporting.credentials()) as channel:
            channel.validate(dict.fromkeys(tables, LINKS))
            channel.open(Deliverer("shopping", "this", "pair", "test"))
            number = 1 if position is None else position.barrier_id + 1
            delivery = Delivery(number, 0, MONDAY, position, Rows.CHANGES, tables if position is None else (), tables)
            channel.deliver(delivery)
        return delivery.position

    first = step(None, [{"id": 1, "other": 1}], [{"id": 1, "other": 2}, {"id": 2, "other": None}])
    second = step(
        first,
        [{CHANGE: UPDATE, "id": 1, "other": 3}, {CHANGE: INSERT, "id": 2, "other": 2}],
        [{CHANGE: INSERT, "id": 3, "other": 4}, {CHANGE: INSERT, "id": 4}, {CHANGE: UPDATE, "id": 2, "other": 3},
         {CHANGE: DELETE, "id": 1}],
    )  # fmt: skip
    assert reporting.run("SELECT * FROM a_many ORDER BY 1") == [(1, 3), (2, 2)]
    assert reporting.run("SELECT * FROM b_one ORDER BY 1") == [(2, 3), (3, 4), (4, None)]
    step(
        second,
        [{CHANGE: DELETE, "id": number} for number in (1, 2)],
        [{CHANGE: DELETE, "id": number} for number in (2, 3, 4)],
    )
    assert reporting.run("SELECT * FROM a_many UNION ALL SELECT * FROM b_one") == []


def test_targets_that_refer_to_each_other_in_a_circle(reporting: Reporting) -> None:
    reporting.run("CREATE TABLE b_one (id bigint PRIMARY KEY, other bigint)")
    reporting.run("CREATE TABLE a_many (id bigint PRIMARY KEY REFERENCES a_many, other bigint REFERENCES b_one)")
    reporting.run("ALTER TABLE b_one ADD FOREIGN KEY (other) REFERENCES a_many")
    sink = PostgreSQLSink("reporting", name="pair")
    declared = sink.declare({MANY: "a_many", ONE: "b_one"}, Rows.CHANGES, "shopping_dag")
    rows = dict.fromkeys((MANY, ONE), Batches(LINKS, [{"id": 1, "other": 1}]))
    with sink.connect(declared, reporting.credentials()) as channel:
        with pytest.raises(SinkRefusedError, match="found a circle") as refused:
            channel.validate(dict.fromkeys(rows, LINKS))
        reporting.run(str(refused.value).rpartition("; ")[2])
        channel.validate(dict.fromkeys(rows, LINKS))
        channel.open(Deliverer("shopping", "this", "pair", "test"))
        counts = channel.deliver(Delivery(1, 0, MONDAY, None, Rows.CHANGES, whole=rows, tables=rows))
        assert counts == dict.fromkeys(rows, Counts(inserted=1))
