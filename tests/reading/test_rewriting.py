"""Unchanged SQL whose tables are pinned: small queries, and what becomes of their text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_barrier.protocol.errors import (
    ConfigurationError,
    NotAReadError,
    SqlSyntaxError,
    UnknownDialectError,
    UnpinnableError,
)
from airflow_barrier.reading._names import Parts
from airflow_barrier.reading._statement import Statement
from airflow_barrier.reading.rewriting import Pin, Place, Rewritten, View, pins_of, rewrite
from airflow_barrier.reading.spark_views import PlaceOfIcebergs, names_in
from tests.hostile.names import WORKABLE
from tests.reading.answers import answer

PINS = {
    "shop.a": Pin(7, "/m/a.metadata.json"),
    "shop.b": Pin(8, "/m/b.metadata.json"),
    "shop.empty": Pin(None, "/m/empty.metadata.json"),
    "eu.shop.a": Pin(9, "/m/eu.metadata.json"),
    'shop.o`d"d': Pin(10, "/m/o'dd.metadata.json"),
}
SHOP = Place("lake", "shop")
KEYWORDS = ("date", "timestamp", "session", "index", "view", "range", "row", "text", "schema")
VIEWS = {
    ("lake", "shop", "v"): View("SELECT a.x, b.y FROM a JOIN b USING (x); -- the end", SHOP),
    ("lake", "shop", "w"): View("WITH b AS (SELECT * FROM v) SELECT x, b.y FROM b -- no end", SHOP, ("p", "q`")),
    ("other", "views", "far"): View("SELECT * FROM lake.shop.a, lake.eu.shop.a AS e, here", Place("other", "views")),
    ("lake", "shop", "wrong"): View("SELECT * FRO a", SHOP),
    ("lake", "shop", "snake"): View("SELECT * FROM tail", SHOP),
    ("lake", "shop", "tail"): View("SELECT * FROM snake", SHOP),
}


def rewritten(sql: str, dialect: str = "spark", place: Place = SHOP) -> Rewritten:
    return rewrite(sql, dialect, PINS, catalog="lake", place=place, views=VIEWS.get)


def at_snapshots(sql: str, dialect: str = "spark") -> str:
    """``<7>`` behind a name stands for how the dialect says that a table is read at snapshot 7."""
    said = {"spark": r" VERSION AS OF \1", "trino": r" FOR VERSION AS OF \1"}[dialect]
    return re.sub(r"<(\d+)>", said, sql)


#: Each name that has to be pinned is followed by its mark, which the query itself does not have.
QUERIES = (
    # names: whole, partly and not qualified, quoted, in other cases, with blanks and comments in between
    "SELECT * FROM lake.shop.a<7>",
    "SELECT * FROM shop.a<7>",
    "SELECT * FROM a<7>;",
    "SELECT * FROM lake.eu.shop.a<9>, eu.shop.a<9>",
    "SELECT * FROM `lake`.`shop`.`a`<7>, `shop` . /* here */ a<7>",
    'SELECT * FROM `o``d"d`<10>',
    "SELECT * FROM A<7> JOIN Shop.B<8>",
    "SELECT x FROM shop.a<7> -- FROM shop.b\n/* FROM shop.b */ WHERE y = 'FROM shop.b' AND z = \"shop.b\"",
    # columns go on to be named as they were
    "SELECT a.x, shop.a.x, lake.shop.a.x, lake.shop.a.x.y.z, shop.a.* FROM shop.a<7>",
    "SELECT t.x FROM shop.a<7> AS t JOIN b<8> u ON t.x = u.x",
    # wherever tables may stand
    "SELECT (SELECT max(x) FROM b<8> WHERE b.x = a.x) FROM a<7> WHERE EXISTS (SELECT 1 FROM shop.b<8> q WHERE a.x > 1)",
    "SELECT * FROM a<7> WHERE x IN (SELECT x FROM b<8>) GROUP BY ALL HAVING max(x) > (SELECT min(y) FROM b<8>)",
    "SELECT * FROM a<7> UNION SELECT * FROM b<8> EXCEPT (SELECT * FROM a<7> INTERSECT SELECT * FROM b<8>)",
    "SELECT * FROM a<7>, LATERAL (SELECT * FROM b<8> WHERE b.x = a.x)",
    "SELECT * FROM a<7> LATERAL VIEW explode(a.arr) e AS z",
    "SELECT * FROM (((a<7>))) NATURAL JOIN (b<8> CROSS JOIN shop.a<7> t)",
    "SELECT * FROM a<7> PIVOT (sum(x) FOR y IN (1, 2))",
    "SELECT * FROM a<7> TABLESAMPLE (10 PERCENT) AS t",
    "SELECT /*+ BROADCAST(a), MERGE(shop.a, b) */ * FROM a<7> JOIN b<8>",
    "FROM a<7> SELECT x",
    "SELECT * FROM a<7> |> WHERE x > 1 |> JOIN b<8> USING (x)",
    "SELECT * FROM VALUES (1) AS a(x), b<8>",
    # common table expressions hide tables, where they are visible and nowhere else
    "WITH a AS (SELECT 1 AS x) SELECT * FROM a JOIN shop.a<7> ON true JOIN b<8>",
    "WITH a AS (SELECT * FROM a<7>) SELECT * FROM a",
    "WITH A AS (SELECT * FROM a<7>) SELECT * FROM `a`",
    "WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM a WHERE x < 3) SELECT * FROM a, b<8>",
    "WITH x AS (SELECT * FROM b<8>), b AS (SELECT * FROM x) SELECT * FROM b",
    "SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) JOIN a<7>",
    "(WITH a AS (SELECT 1) SELECT * FROM a) UNION ALL SELECT * FROM a<7>",
    "WITH a AS (SELECT 1) SELECT * FROM (WITH b AS (SELECT * FROM a) SELECT * FROM a, b) JOIN b<8>",
    "WITH a AS (WITH b AS (SELECT * FROM b<8>) SELECT * FROM b, a<7>) SELECT (SELECT max(x) FROM a), * FROM b<8>",
)


@pytest.mark.parametrize("marked", QUERIES)
def test_every_table_is_pinned_and_nothing_else_changes(marked: str) -> None:
    plain = re.sub(r"<\d+>", "", marked)
    found = rewritten(plain)
    assert found.sql == at_snapshots(marked)
    assert sorted({str(snapshot) for snapshot in found.pinned.values()}) == sorted(set(re.findall(r"<(\d+)>", marked)))
    assert found.outside == found.about == found.meta == found.views == ()


_BETWEEN = st.sampled_from([" ", "\n", "  ", " /* FROM shop.a */ ", " -- JOIN b\n", "\t"])
_TABLES = st.sampled_from(["shop.a", "a", "lake.shop.b", "`shop`.`b`", "B", "lake . `shop`.a", '`o``d"d`'])
_TEXTS = st.sampled_from(["'FROM shop.a'", '"it""s"', "'it\\'s b'", "'日本 🛒'", "`ä 🛒`.x", "1e3", "shop.a.x"])


@st.composite
def _texts_of_queries(draw: st.DrawFn, depth: int = 2) -> list[str]:
    """A query's words."""
    words = ["SELECT", draw(_TEXTS), ",", draw(_TEXTS), "FROM"]
    words += ["(", *draw(_texts_of_queries(depth - 1)), ")", "q"] if depth and draw(st.booleans()) else [draw(_TABLES)]
    for _ in range(draw(st.integers(0, 2))):
        words += [draw(st.sampled_from([",", "CROSS JOIN", "LEFT ANTI JOIN"])), draw(_TABLES)]
    if depth and draw(st.booleans()):
        words += ["WHERE", "x", "IN", "(", *draw(_texts_of_queries(depth - 1)), ")"]
    if depth and draw(st.booleans()):
        words += ["UNION ALL", *draw(_texts_of_queries(depth - 1))]
    return words


@settings(deadline=None)
@given(_texts_of_queries(), st.data())
def test_outside_of_the_pins_the_text_is_as_it_was(words: list[str], data: st.DataObject) -> None:
    sql = "".join(word + data.draw(_BETWEEN) for word in words)
    found = rewritten(sql)
    assert re.sub(r" VERSION AS OF \d+", "", found.sql) == sql
    # words that are tables, and no others
    named = sum(
        word in ("shop.a", "a", "lake.shop.b", "`shop`.`b`", "B", "lake . `shop`.a", '`o``d"d`') for word in words
    )
    assert found.sql.count(" VERSION AS OF ") == named


def test_a_table_without_a_snapshot_reads_as_empty_and_never_as_main() -> None:
    assert (
        rewritten("SELECT shop.empty.x FROM shop.empty").sql
        == "SELECT shop.empty.x FROM (shop.empty TABLESAMPLE (0 ROWS))"
    )
    assert rewritten("SELECT t.x FROM empty t", "trino").sql == "SELECT t.x FROM (SELECT * FROM empty WHERE false) t"
    assert rewritten("SELECT shop.empty.x FROM lake.shop.empty", "trino").sql == (
        'SELECT empty.x FROM (SELECT * FROM lake.shop.empty WHERE false) AS "empty"'
    )
    assert rewritten("FROM empty", "duckdb").sql == (
        "FROM (SELECT * FROM iceberg_scan('/m/empty.metadata.json') WHERE false) AS \"empty\""
    )
    assert rewritten("SELECT * FROM empty").pinned == {"shop.empty": None}


def test_trino_and_duckdb_say_it_in_their_own_words() -> None:
    marked = 'SELECT a.x, shop.a.x FROM "shop".a<7> JOIN lake.shop.b<8> AS t ON true, (SELECT * FROM b<8>), UNNEST(a.y)'
    assert rewritten(re.sub("<.>", "", marked), "trino").sql == at_snapshots(marked, "trino")
    assert rewritten(
        'SELECT a.x, t.y FROM "shop".a JOIN shop.b AS t ON true WHERE lake.shop.a.x > 1', "duckdb"
    ).sql == (
        "SELECT a.x, t.y FROM iceberg_scan('/m/a.metadata.json', snapshot_from_id => 7) AS \"a\" "
        "JOIN iceberg_scan('/m/b.metadata.json', snapshot_from_id => 8) AS t ON true WHERE a.x > 1"
    )
    assert rewritten('SELECT lake.shop.a.st.x, shop.a.* FROM "a"', "duckdb").sql == (
        "SELECT a.st.x, a.* FROM iceberg_scan('/m/a.metadata.json', snapshot_from_id => 7) AS \"a\""
    )
    assert rewritten('FROM "o`d""d"', "duckdb").sql == (
        "FROM iceberg_scan('/m/o''dd.metadata.json', snapshot_from_id => 10) AS \"o`d\"\"d\""
    )
    assert rewritten("PIVOT a ON x USING sum(y)", "duckdb").pinned == {"shop.a": 7}
    assert rewritten('FROM lake."eu.shop".a', "duckdb").pinned == {"eu.shop.a": 9}
    with pytest.raises(ConfigurationError, match="metadata document"):
        rewrite("FROM shop.a", "duckdb", {"shop.a": Pin(7)}, catalog="lake")


def test_an_unknown_dialect_is_refused_naming_those_there_are() -> None:
    with pytest.raises(
        UnknownDialectError, match="expected one of athena, duckdb, presto, spark, trino, found 'mysql'"
    ):
        rewritten("SELECT 1", "mysql")


@pytest.mark.parametrize("dialect", ["athena", "presto"])
def test_engines_that_speak_as_trino_does(dialect: str) -> None:
    assert rewritten("SELECT * FROM shop.a, empty", dialect) == rewritten("SELECT * FROM shop.a, empty", "trino")


def test_what_is_not_the_topologys_is_left_alone_and_said() -> None:
    sql = "SELECT * FROM a, c, other.t, parquet.`/x`, range(3) r, tmp, global_temp.g, lake.shop.a.b.c.d"
    found = rewritten(sql, place=Place("lake", "shop", temporary=frozenset({"TMP"})))
    assert found.sql == sql.replace("FROM a,", "FROM a VERSION AS OF 7,")
    assert found.outside == (
        "lake.global_temp.g",
        "lake.other.t",
        "lake.parquet./x",
        "lake.shop.a.b.c.d",
        "lake.shop.c",
        "range()",
    )
    assert (found.temporary, found.elsewhere) == (("`tmp`",), ())
    # a temporary view comes before a table, but has no namespace
    hidden = rewritten("SELECT * FROM a, shop.a", place=Place("lake", "shop", temporary=frozenset({"a"})))
    assert (hidden.sql, hidden.outside) == ("SELECT * FROM a, shop.a VERSION AS OF 7", ())
    assert hidden.temporary == ("`a`",)
    assert rewritten("SELECT * FROM lake.`shop.a`").outside == ("lake.shop.a",)


@pytest.mark.parametrize(
    ("dialect", "sql", "place"),
    [
        ("trino", "SELECT * FROM x.shop.a", SHOP),
        ("trino", 'SELECT * FROM X."eu.shop".A', SHOP),
        ("trino", 'SELECT * FROM x.shop."a$files"', SHOP),
        ("spark", "SELECT * FROM a", Place("x", "shop")),
        ("spark", "SELECT * FROM shop.a", Place("x")),
        ("spark", "SELECT * FROM x.shop.a", Place("lake", catalogs=frozenset({"x"}))),
        ("spark", "SELECT * FROM x.shop.a", SHOP),  # as far as it knows, x is a namespace
        ("spark", "SELECT * FROM x.shop.a.branch_b VERSION AS OF 3", SHOP),
        ("duckdb", "FROM x.shop.a", SHOP),
    ],
)
def test_a_table_of_the_same_name_in_another_catalog_is_said_apart(dialect: str, sql: str, place: Place) -> None:
    found = rewritten(sql, dialect, place)
    assert found.sql == sql
    assert len(found.outside) == 1
    assert [name.casefold()[0] for name in found.elsewhere] == ["x"]


@pytest.mark.parametrize(
    ("dialect", "namespace"),
    [
        ("spark", "`my-shop`"),
        ("spark", "my-shop"),
        ("spark", ("my-shop",)),
        ("trino", '"my-shop"'),
        ("spark", "eu.`od``d`"),
        ("spark", ("eu", "od`d")),
        ("trino", "eu.shop"),
        ("trino", ("eu.shop",)),
        ("duckdb", '"eu.shop"'),
    ],
)
def test_a_place_may_have_any_name(dialect: str, namespace: Parts | str) -> None:
    place = Place("lake", namespace)
    pins = {table: Pin(7, "/m") for table in ("my-shop.a", "eu.shop.a", "eu.od`d.a")}
    found = rewrite("SELECT * FROM a", dialect, pins, catalog="lake", place=place)
    assert (len(found.pinned), found.outside) == (1, ())


@pytest.mark.parametrize("namespace", ["`shop", 'sh"op', "shop.", ".", "a``b"])
def test_a_place_that_is_not_understood_is_refused(namespace: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a namespace such as eu\.shop, found"):
        Place("lake", namespace)


@pytest.mark.kills("names-lead-from-a-known-place")
def test_where_spark_stands_is_understood_or_refused() -> None:
    assert names_in("lake.`my-shop`.`od``d.one`.eu_1", "SQL") == ("lake", "my-shop", "od`d.one", "eu_1")
    for said in ("", "my-shop", "`my", "a..b"):
        with pytest.raises(UnpinnableError, match="expected Spark to say which catalog and namespace"):
            names_in(said, "view v")


@pytest.mark.kills("names-lead-from-a-known-place")
def test_names_in_icebergs_views_lead_to_what_they_read() -> None:
    """Spark does not say where they were made, but which tables stand in their plan."""
    reads = {("lake", "eu", "shop", "a"), ("lake", "shop", "b"), ("other", "shop", "b"), ("lake", "x", "c")}
    lies = PlaceOfIcebergs("lake", "shop", view="`lake`.`shop`.`v`", reads=frozenset(reads))
    assert rewritten("SELECT * FROM A", place=lies).pinned == {"eu.shop.a": 9}
    assert rewritten("SELECT * FROM shop.a, lake.shop.b", place=lies).pinned == {"eu.shop.a": 9, "shop.b": 8}
    assert rewritten("SELECT * FROM c", place=lies).outside == ("lake.x.c",)
    for name, found in (("b", r"`lake`\.`shop`\.`b` or `other`\.`shop`\.`b`"), ("empty", "any")):
        with pytest.raises(UnpinnableError, match=f"view `lake`.`shop`.`v`: .* found `{name}`, which may be {found};"):
            rewritten(f"SELECT * FROM {name}", place=lies)


@pytest.mark.kills("namespace-is-known")
def test_a_name_without_a_namespace_is_not_left_to_the_engine() -> None:
    for dialect in ("spark", "trino", "duckdb"):
        with pytest.raises(
            UnpinnableError, match=r"with their namespace, .* found A, which may be (eu\.)?shop\.a; write"
        ):
            rewritten("SELECT * FROM A", dialect, Place("lake"))
    with pytest.raises(UnpinnableError, match=r"found b, which may be shop\.b"):
        rewrite("SELECT * FROM b", "trino", {}, catalog="lake", unresolved=["shop.b"])
    assert rewritten("SELECT * FROM c", place=Place("lake")).outside == ("lake.c",)
    assert rewritten("SELECT * FROM a", place=Place("lake", "default")).outside == ("lake.default.a",)


@pytest.mark.parametrize("sql", ["SELECT * FROM lake.x.shop.a", "SELECT * FROM x.shop.c", "SELECT * FROM x.other.a"])
def test_tables_of_other_names_are_others(sql: str) -> None:
    found = rewritten(sql)
    assert (len(found.outside), found.elsewhere) == (1, ())


class _NobodyToAsk(Place):
    """An engine would have to be asked for it."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> object:
        assert name not in Place.__dataclass_fields__, name
        return super().__getattribute__(name)


def test_whole_names_need_no_place() -> None:
    sql = "WITH x AS (SELECT 1) SELECT * FROM lake.shop.a JOIN lake.shop.b JOIN x JOIN lake.other.t"
    found = rewritten(sql, place=_NobodyToAsk())
    assert found.sql == sql.replace("shop.a", "shop.a VERSION AS OF 7").replace("shop.b", "shop.b VERSION AS OF 8")
    with pytest.raises(AssertionError):
        rewritten("SELECT * FROM shop.a", place=_NobodyToAsk())


@pytest.mark.kills("no-table-of-the-topology-is-left-out")
def test_a_table_of_the_topology_that_the_answer_does_not_have_is_not_read() -> None:
    for sql in ("SELECT * FROM shop.a JOIN SHOP.b", "SELECT * FROM shop.b.branch_x"):
        with pytest.raises(UnpinnableError):
            rewrite(sql, "spark", {"shop.a": Pin(7)}, catalog="lake", unresolved=["shop.a", "shop.b"])
    with pytest.raises(UnpinnableError, match=r"expected tables that the answer has \(shop.a\), found shop.b"):
        rewrite("SELECT * FROM shop.b", "spark", {"shop.a": Pin(7)}, catalog="lake", unresolved=["shop.b"])


def test_metadata_of_tables_is_left_alone_and_reported_apart() -> None:
    sql = "SELECT * FROM lake.shop.a.snapshots, shop.b.files f, __meta_etl_sink, lake.__META_TABLE_VERSION v"
    found = rewritten(sql)
    assert found.sql == sql
    assert (found.about, found.meta) == (
        ("shop.a.snapshots", "shop.b.files"),
        ("__META_ETL_SINK", "__META_TABLE_VERSION"),
    )
    assert found.outside == ()
    assert rewritten('SELECT * FROM "a$snapshots"', "trino").about == ("shop.a.snapshots",)


@pytest.mark.kills("no-time-travel-of-its-own", "no-other-branch")
@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        ("spark", "SELECT * FROM a VERSION AS OF 3"),
        ("spark", "SELECT * FROM a FOR VERSION AS OF 'a tag'"),
        ("spark", "SELECT * FROM lake.shop.a TIMESTAMP AS OF '2026-01-01' t"),
        ("spark", "SELECT * FROM v TIMESTAMP AS OF '2026-01-01'"),
        ("duckdb", "FROM a AT (VERSION => 3)"),
        ("trino", "SELECT * FROM a FOR TIMESTAMP AS OF current_timestamp"),
        ("spark", "SELECT * FROM lake.shop.a.branch_audit"),
        ("spark", "SELECT * FROM shop.a.tag_barrier_shop_b1_r0"),
        ("spark", "SELECT * FROM shop.a.`snapshot_id_7`"),
        ("spark", "SELECT * FROM shop.a.at_timestamp_0"),
        ("spark", "SELECT * FROM shop.a.changes"),
        ("trino", 'SELECT * FROM "a$changes"'),
    ],
)
def test_a_table_has_no_time_of_its_own(dialect: str, sql: str) -> None:
    with pytest.raises(UnpinnableError, match="one query reads one barrier"):
        rewritten(sql, dialect)


def test_time_travel_outside_of_the_topology_is_left_alone() -> None:
    sql = "SELECT * FROM c VERSION AS OF 3, other.t.branch_x"
    assert rewritten(sql).sql == sql


@pytest.mark.kills("names-are-in-the-text", "table-by-keyword")
@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        ("spark", "SELECT * FROM IDENTIFIER('shop.a')"),
        ("spark", "SELECT * FROM STREAM(a)"),
        ("spark", "SELECT * FROM STREAM a"),
        ("spark", "SELECT * FROM :t"),
        ("spark", "SELECT * FROM ${t}"),
        ("spark", "SELECT * FROM {{ t }}"),
        ("duckdb", "FROM query('FROM a')"),
        ("duckdb", "FROM query_table('a')"),
        ("duckdb", "FROM (SUMMARIZE a)"),
        ("spark", "SELECT * FROM (TABLE a)"),
        ("spark", "SELECT (TABLE a)"),
        ("spark", "SELECT * FROM f(TABLE(a))"),
        ("trino", "SELECT * FROM (TABLE a)"),
        ("duckdb", "TABLE a"),
        ("trino", "SELECT * FROM TABLE(f(input => TABLE(shop.a)))"),
        ("trino", "SELECT * FROM TABLE(f(input => TABLE(date)))"),
        # names that are keywords elsewhere
        *(("spark", f"WITH q AS (TABLE {word}) SELECT * FROM q") for word in KEYWORDS),
        *(("spark", f"SELECT (TABLE {word})") for word in KEYWORDS),
        *(("spark", f"SELECT * FROM (TABLE {word})") for word in KEYWORDS),
        *(("spark", f"SELECT * FROM f(TABLE(shop.{word}))") for word in KEYWORDS),
        ("spark", "SELECT * FROM f(TABLE(shop.1a))"),
        ("spark", "SELECT * FROM f(TABLE(IDENTIFIER('shop.a')))"),
        ("spark", "SELECT (TABLE ${t})"),
        ("spark", "SELECT * FROM f(TABLE(:t))"),
        # functions that read a table by its name
        ("trino", "SELECT * FROM TABLE(lake.system.table_changes('shop', 'a', 1, 2))"),
        ("trino", 'SELECT * FROM TABLE("lake"."system"."TABLE_CHANGES"(table_name => \'a\'))'),
        ("trino", "SELECT * FROM TABLE(other.system.query(query => 'SELECT * FROM a'))"),
    ],
)
def test_what_cannot_be_pinned_is_refused(dialect: str, sql: str) -> None:
    with pytest.raises(UnpinnableError, match="cannot be pinned"):
        rewritten(sql, dialect)


@pytest.mark.kills("pipes-hide-no-table")
@pytest.mark.parametrize(
    "sql",
    [
        "FROM a |> AS b |> JOIN b ON true",
        "FROM a |> WHERE x > 1 |> as b |> WHERE x IN (SELECT y FROM b)",
        "FROM a |> SELECT x |> JOIN __tmp1 ON true",
    ],
)
def test_what_pipes_call_something_is_refused(sql: str) -> None:
    """The parser makes common table expressions of it, which would hide tables of these names."""
    with pytest.raises(
        UnpinnableError, match=r"expected pipes without names of their own, found '(\|> AS|\|> as|JOIN __)"
    ):
        rewritten(sql)
    assert rewritten("FROM a t |> WHERE t.x = '__tmp1' |> JOIN b AS u ON true").pinned == {"shop.a": 7, "shop.b": 8}


@pytest.mark.kills("spliced-where-the-name-is")
def test_a_name_that_is_not_where_the_parser_says_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are sqlglot's; a version of it that counts otherwise may not lead to another text."""
    statement = Statement.of("SELECT * FROM shop.a", "spark")
    shifted = Statement("SELECT  * FROM shop.a", statement.tree, statement.tokens)
    monkeypatch.setattr(Statement, "of", lambda *_: shifted)
    with pytest.raises(UnpinnableError, match="where the name 'shop' stands in the text, found ' sho'"):
        rewritten("SELECT  * FROM shop.a")


def test_the_word_table_is_no_table() -> None:
    assert rewritten("SELECT t.table x, table, 'TABLE a' FROM a t").sql.endswith("FROM a VERSION AS OF 7 t")
    for query in ("SELECT * FROM a", "WITH q AS (SELECT 1) SELECT * FROM q, a", "FROM a", "(SELECT * FROM a)"):
        assert rewritten(f"SELECT * FROM f(TABLE({query}))").pinned == {"shop.a": 7}
    assert rewritten("SELECT max(table) FROM a WHERE table = 1 GROUP BY `table`").pinned == {"shop.a": 7}
    assert rewritten("SELECT * FROM TABLE(sequence(1, 3))", "trino").outside == ("TABLE()",)
    assert rewritten("WITH c AS (SELECT 1) TABLE c", "trino").pinned == {}
    assert rewritten("TABLE other.t", "trino").outside == ("lake.other.t",)


@pytest.mark.kills("reads-only", "one-statement")
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO shop.a SELECT * FROM shop.b",
        "insert overwrite a table b",
        "WITH x AS (SELECT 1) INSERT INTO a SELECT * FROM x",
        "FROM b INSERT INTO a SELECT *",
        "MERGE INTO a USING b ON a.x = b.x WHEN MATCHED THEN DELETE",
        "MERGE WITH SCHEMA EVOLUTION INTO a USING b ON true WHEN MATCHED THEN DELETE",  # sqlglot does not know it
        "UPDATE a SET x = 1",
        "DELETE FROM a",
        "TRUNCATE TABLE a",
        "CREATE TABLE c AS SELECT * FROM a",
        "CREATE TEMPORARY VIEW c AS SELECT * FROM a",
        "ALTER TABLE a ADD COLUMN x int",
        "DROP TABLE a",
        "CALL lake.system.expire_snapshots('shop.a')",
        "SET spark.sql.catalog.lake.uri = x",
        "USE shop",
        "CACHE TABLE a",
        "EXECUTE IMMEDIATE 'SELECT * FROM a'",
        "BEGIN SELECT 1; END",
        "DECLARE x INT",
        "EXPLAIN SELECT * FROM a",
        "TABLE a",
        "SELECT 1; SELECT 2",
        "",
        " -- nothing\n;",
    ],
)
def test_writes_and_what_is_no_query_are_refused(sql: str) -> None:
    with pytest.raises(NotAReadError, match=r"expected (a|one) query"):
        rewritten(sql)


@pytest.mark.kills("reads-only-inside")
@pytest.mark.parametrize(
    "sql", ["SELECT * INTO c FROM a", "WITH x AS (INSERT INTO a SELECT 1 RETURNING *) FROM x", "COPY a TO 'file'"]
)
def test_writes_inside_of_a_query_are_refused(sql: str) -> None:
    with pytest.raises(NotAReadError):
        rewritten(sql, "duckdb")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT x\nFROM a\nWHERE x = = 3", r"SQL, line 3, column 11: .*'='.*Required keyword"),
        ("SELECT * FRM a", r"line 1, column 14: .*'a'.*Unexpected token"),
        ("SELECT \"x\",\n '' || 'it''s", r"SQL, line 2, column 8: .*Missing '"),
        ("SELECT /* a */ '/*',\n /* x /* y */", r"SQL, line 2, column 2: .*a comment does not end"),
        ("SELECT 'a' 'b' x'zz'", r"SQL, line 1, column 17: .*invalid characters"),
        ("SELECT\n" + "(" * 3000 + "1" + ")" * 3000, r"SQL, line 2, column 3000: .*nested too deeply.* by 3000 bra"),
        ("SELECT * FROM wrong", r"view lake.shop.wrong, line 1, column 14"),
    ],
)
def test_what_cannot_be_parsed_says_where_and_why(sql: str, said: str) -> None:
    with pytest.raises(SqlSyntaxError, match=said) as caught:
        rewritten(sql)
    assert "sqlglot" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_view_is_inlined_under_its_name() -> None:
    inside = (
        "(SELECT a.x, b.y FROM `lake`.`shop`.`a` VERSION AS OF 7 JOIN `lake`.`shop`.`b` VERSION AS OF 8 USING (x)\n)"
    )
    found = rewritten("SELECT v.x, shop.v.y, lake.shop.v.* FROM shop.v")
    assert found.sql == f"SELECT v.x, v.y, v.* FROM ({inside} AS `v`)"
    assert (found.pinned, found.views) == ({"shop.a": 7, "shop.b": 8}, ("lake.shop.v",))
    assert rewritten("SELECT t.x FROM v AS t").sql == f"SELECT t.x FROM {inside} AS t"


def test_a_view_in_a_view_has_its_own_names_and_those_of_its_columns() -> None:
    found = rewritten("WITH v AS (SELECT 1) SELECT p FROM w, v")
    assert found.sql == (
        "WITH v AS (SELECT 1) SELECT p FROM ((SELECT * FROM (WITH b AS (SELECT * FROM ((SELECT a.x, b.y FROM "
        "`lake`.`shop`.`a` VERSION AS OF 7 JOIN `lake`.`shop`.`b` VERSION AS OF 8 USING (x)\n) AS `v`)) SELECT x, b.y "
        "FROM b -- no end\n) AS `v` (`p`, `q```)) AS `w`), v"
    )
    assert found.views == ("lake.shop.v", "lake.shop.w")


def test_a_view_leads_to_what_it_led_to_where_it_was_made() -> None:
    found = rewritten("SELECT * FROM far", place=Place("other", "views"))
    assert found.sql == (
        "SELECT * FROM ((SELECT * FROM `lake`.`shop`.`a` VERSION AS OF 7, `lake`.`eu`.`shop`.`a` VERSION AS OF 9 AS e, "
        "`other`.`views`.`here`\n) AS `far`)"
    )
    assert found.outside == ("other.views.here",)


@pytest.mark.kills("views-end")
def test_views_that_contain_themselves_are_refused() -> None:
    with pytest.raises(UnpinnableError, match=r"lake.shop.snake -> lake.shop.tail -> lake.shop.snake"):
        rewritten("SELECT * FROM snake")
    endless = lambda name: View(f"SELECT * FROM {name[-1]}x", SHOP)  # noqa: E731
    with pytest.raises(UnpinnableError, match="at most 16 steps"):
        rewrite("SELECT * FROM y", "spark", {}, catalog="lake", place=SHOP, views=endless)


def test_spark_that_tells_cases_apart_is_believed() -> None:
    sql = "WITH A AS (SELECT 1) SELECT * FROM a"
    assert rewritten(sql).pinned == {}
    assert rewritten(sql, place=Place("lake", "shop", case_sensitive=True)).pinned == {"shop.a": 7}


def test_of_two_tables_that_differ_in_case_the_exact_one_is_read() -> None:
    pins = {"shop.a": Pin(1), "shop.A": Pin(2)}
    found = rewrite("SELECT * FROM shop.a, shop.A", "spark", pins, catalog="lake")
    assert found.sql == "SELECT * FROM shop.a VERSION AS OF 1, shop.A VERSION AS OF 2"


@pytest.mark.parametrize("dialect", ["spark", "trino", "duckdb"])
@pytest.mark.parametrize("name", WORKABLE)
def test_any_name_of_a_table_is_found(dialect: str, name: str) -> None:
    quote = "`" if dialect == "spark" else '"'
    quoted = quote + name.replace(quote, quote * 2) + quote
    table = f"shop.{name}"
    found = rewrite(f"SELECT 'x' FROM shop.{quoted} WHERE true", dialect, {table: Pin(7, "/m")}, catalog="lake")
    assert found.pinned == {table: 7}
    assert found.sql.startswith("SELECT 'x' FROM ")
    assert found.sql.endswith(" WHERE true")
    if dialect != "duckdb":
        assert f"shop.{quoted} " in found.sql


def test_the_pins_of_an_answer() -> None:
    found = answer({"shop.a": 7, "shop.e": None})
    assert pins_of(found) == {"shop.a": Pin(7), "shop.e": Pin(None)}
    assert pins_of(found, {"shop.a": "/m"}) == {"shop.a": Pin(7, "/m"), "shop.e": Pin(None)}
