"""What a job leaves in its Spark Connect session, told by what the session's client asks the server.

A session serves another attempt only if that attempt finds nothing of this one in it. So this is a list of what is
known to leave nothing, or something that can be taken out; whatever else is asked makes the session serve once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from airflow_barrier.spark._conf import is_our_own
from airflow_barrier.systems.kafka_settings import REDACTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HARMLESS_COMMANDS = frozenset(
    {"write_operation", "write_operation_v2", "merge_into_table_command", "remove_cached_remote_relation_command"}
)
_HARMLESS_CATALOG = frozenset(
    {
        *("current_catalog", "current_database", "list_catalogs", "list_databases", "list_tables", "list_columns"),
        *("get_database", "get_table", "database_exists", "table_exists", "function_exists", "is_cached"),
        *("drop_temp_view", "uncache_table", "refresh_table", "refresh_by_path"),
    }
)
#: First words of statements that change tables at most.
_HARMLESS_SQL = frozenset(
    {
        *("select", "with", "from", "values", "table", "describe", "desc", "show", "explain"),
        *("insert", "merge", "update", "delete", "truncate", "call", "alter", "analyze", "refresh"),
    }
)
# Spark nests comments. One that has another one in it is not matched, so the statement behind it counts as unknown.
_COMMENT = re.compile(r"\s+|--[^\n]*|/\*(?:(?!/\*).)*?\*/|\(", re.DOTALL)
_TEMPORARY_VIEW = re.compile(r"create\s+(?:or\s+replace\s+)?temp(?:orary)?\s+view\s+(?:`([^`]+)`|(\w+))", re.IGNORECASE)
_TABLE = re.compile(r"(?:create|create\s+or\s+replace|replace|drop)\s+table\b", re.IGNORECASE)


class Traces(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
):
    """Listens to one session's client.

    ``lasting``: the first thing that the job left and that cannot be taken out, in words (None: there is none).
    """

    def __init__(self) -> None:
        self.lasting: str | None = None
        self._views: set[str] = set()

    def remove(self, session: SparkSession) -> None:
        """Take out of the session what can be: work of the job's threads that nobody waits for, and temporary views.

        What the job staged counts whether this succeeds or not.
        """
        from pyspark.errors import PySparkException

        if self.lasting is not None:
            return
        try:
            session.interruptAll()
            for view in sorted(self._views):
                session.catalog.dropTempView(view)
        except PySparkException as error:
            self._leaves(f"it could not be cleared: {type(error).__name__}")

    def intercept_unary_unary(self, go_on: Callable[..., Any], details: Any, request: Any) -> Any:
        """Called by gRPC before each request: Config, AnalyzePlan and the like."""
        return self._seen(go_on, details, request)

    def intercept_unary_stream(self, go_on: Callable[..., Any], details: Any, request: Any) -> Any:
        """Called by gRPC before each request: ExecutePlan and the like."""
        return self._seen(go_on, details, request)

    def intercept_stream_unary(self, go_on: Callable[..., Any], details: Any, requests: Any) -> Any:
        """Called by gRPC before each request: AddArtifacts."""
        self._leaves("it sent files to the session")
        return go_on(details, requests)

    def _seen(self, go_on: Callable[..., Any], details: Any, request: Any) -> Any:
        method = details.method.rpartition("/")[2]
        if method == "ExecutePlan":
            self._plan(request.plan)
        elif method == "Config" and not is_our_own():  # each epoch sets that anew
            self._conf(request.operation)
        elif method == "CloneSession":
            self._leaves("it cloned the session")
        return go_on(details, request)

    def _conf(self, operation: Any) -> None:
        kind = operation.WhichOneof("op_type")
        if kind == "set":
            names = [pair.key for pair in operation.set.pairs]
        elif kind == "unset":
            names = list(operation.unset.keys)
        else:
            return
        others = [name for name in names if name != REDACTED]
        if others:
            self._leaves(f"it set {', '.join(others)}")

    def _plan(self, plan: Any) -> None:
        kind = plan.WhichOneof("op_type")
        if kind == "command":
            self._command(plan.command)
        elif kind != "root":
            self._leaves("it sent a plan that cannot be looked into")
        elif plan.root.WhichOneof("rel_type") == "catalog":
            asked = plan.root.catalog.WhichOneof("cat_type")
            if asked not in _HARMLESS_CATALOG:
                self._leaves(f"it called the catalog's {asked}")

    def _command(self, command: Any) -> None:
        kind = command.WhichOneof("command_type")
        if kind == "sql_command":
            given = command.sql_command.input
            inner = given.with_relations.root if given.WhichOneof("rel_type") == "with_relations" else given
            self._statement(inner.sql.query)
        elif kind == "create_dataframe_view" and not command.create_dataframe_view.is_global:
            self._views.add(command.create_dataframe_view.name)
        elif kind not in _HARMLESS_COMMANDS:
            self._leaves(f"it sent the command {kind}")

    def _statement(self, text: str) -> None:
        text = _without_comments(text)
        view = _TEMPORARY_VIEW.match(text)
        if view is not None:
            self._views.add(view[1] or view[2])
            return
        first = re.match(r"\w*", text)
        word = first[0].lower() if first else ""
        if word not in _HARMLESS_SQL and not _TABLE.match(text):
            self._leaves(f"it executed a statement that begins with {word.upper() or 'none of the known words'}")

    def _leaves(self, what: str) -> None:
        self.lasting = self.lasting or what


def _without_comments(text: str) -> str:
    """The statement from its first word on."""
    at = 0
    while (found := _COMMENT.match(text, at)) is not None:
        at = found.end()
    return text[at:]
