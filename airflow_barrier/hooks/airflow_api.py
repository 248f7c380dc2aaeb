"""Airflow's own REST API, for what a task cannot ask of its supervisor, and for people outside of Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
from airflow.sdk import BaseHook

from airflow_barrier.coordinator.settings import require_no_password
from airflow_barrier.protocol.errors import (
    AirflowRefusedError,
    AirflowUnavailableError,
    BackfillActiveError,
    ConfigurationError,
    RunActiveError,
    UnknownRunError,
)

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONN_TYPE = "http"
DEFAULT_CONN_ID = "barrier_airflow_api"

#: Seconds. A backfill of many days clears all of their tasks before it is answered.
_TIMEOUT = httpx.Timeout(120.0, connect=10.0)
_VERSION = "/api/v2"


@dataclass(frozen=True)
class AirflowApi:
    """Where Airflow's API server is, as its ``[api] base_url`` says, and who asks: a user, or whoever has ``token``."""

    url: str
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of_connection(cls, conn_id: str = DEFAULT_CONN_ID) -> AirflowApi:
        """By an Airflow connection of the type http. Raises ConfigurationError; AirflowNotFoundException if none.

        >>> AirflowApi.of_connection("barrier_airflow_api")  # doctest: +SKIP
        AirflowApi(url='https://airflow.example.com', login='barrier')
        """
        return _of(BaseHook.get_connection(conn_id))

    def create_backfill(
        self, dag_id: str, from_date: datetime, to_date: datetime, conf: Mapping[str, Any], *, max_active_runs: int = 10
    ) -> int:
        """Have a DAG's runs of some days run again, those that have ended before included; returns the backfill's id.

        ``from_date`` and ``to_date`` are the first and the last run's *logical* dates, with a time zone. Runs that
        exist get ``conf`` in the place of their own, and keep it; days without a run get one. The DAG's other runs are
        not counted in ``max_active_runs``. Nothing starts while the DAG is paused.

        Raises UnknownRunError (no such DAG), RunActiveError (a run of these days has not ended; Airflow would leave it
        out), BackfillActiveError, AirflowRefusedError (not allowed, or no such days), AirflowUnavailableError (also
        when the answer was lost: then the next call may find the backfill active), ConfigurationError.

        >>> api.create_backfill("shopping", monday, tuesday, {"barrier_revision": 7})  # doctest: +SKIP
        12
        """
        for date in (from_date, to_date):
            if date.tzinfo is None:
                raise ConfigurationError(f"expected dates with a time zone, found {date}; add one, as in {date}+00:00")
        with httpx.Client(base_url=self.url, timeout=_TIMEOUT) as client:
            client.headers["Authorization"] = f"Bearer {self.token or self._token(client)}"
            self._require_ended(client, dag_id, from_date, to_date)
            body = {
                "dag_id": dag_id,
                "from_date": from_date.isoformat(),
                "to_date": to_date.isoformat(),
                "reprocess_behavior": "completed",
                "dag_run_conf": dict(conf),
                "max_active_runs": max_active_runs,
            }
            created = self._ask(client, "POST", f"{_VERSION}/backfills", json=body)
        return int(created["id"])

    def _require_ended(self, client: httpx.Client, dag_id: str, from_date: datetime, to_date: datetime) -> None:
        """A backfill passes over runs that have not ended, without a word in its answer."""
        which = {
            "logical_date_gte": from_date.isoformat(),
            "logical_date_lte": to_date.isoformat(),
            "run_type": ["scheduled", "backfill"],
            "state": ["queued", "running"],
            "order_by": "logical_date",
        }
        path = f"{_VERSION}/dags/{quote(dag_id, safe='')}/dagRuns"
        active = self._ask(client, "GET", path, params=which)["dag_runs"]
        if active:
            first = active[0]
            raise RunActiveError(
                f"DAG {dag_id}: expected its runs from {from_date} to {to_date} to have ended, found {len(active)} "
                f"that have not, {first['dag_run_id']} ({first['state']}) the first; wait for them, or mark them "
                "failed, then try again"
            )

    def _token(self, client: httpx.Client) -> str:
        login = {"username": self.login, "password": self.password}
        return str(self._ask(client, "POST", "/auth/token", json=login)["access_token"])

    def _ask(self, client: httpx.Client, method: str, path: str, **request: Any) -> dict[str, Any]:
        try:
            answer = client.request(method, path, **request)
        except httpx.HTTPError as error:
            raise AirflowUnavailableError(
                f"Airflow at {self.url}: expected an answer to {method} {path}, found {type(error).__name__}: {error}; "
                "check that its API server runs, and the address in the connection, then try again"
            ) from error
        if answer.is_success:
            try:
                content: dict[str, Any] = answer.json()
            except ValueError:
                raise self._elsewhere("a page that is none of its API's") from None
            return content
        raise self._error(answer, path)

    def _error(self, answer: httpx.Response, path: str) -> Exception:
        status, said = answer.status_code, _said(answer)
        where, who = f"Airflow at {self.url}", self.login or "the owner of the token"
        if status in (401, 403):
            return AirflowRefusedError(
                f"{where}: expected it to let {who} do this, found {status}: {said}; check the credentials of the "
                "connection, whether the token has expired, and that its user may see the DAG's runs and trigger them"
            )
        if status == 404 and path.startswith(_VERSION) and said != "Not Found":
            return UnknownRunError(f"{where}: expected a DAG of that name, found: {said}; correct the name")
        if status == 409:
            return BackfillActiveError(
                f"{where}: expected no other backfill of the DAG, found: {said}; wait for its end, which Airflow "
                "notices up to half a minute later, or cancel it, then try again"
            )
        if status in (400, 422):
            return AirflowRefusedError(f"{where}: expected it to take these days, found {status}: {said}; correct them")
        if status >= 500 or status in (408, 429):
            return AirflowUnavailableError(
                f"{where}: expected an answer to {path}, found {status}: {said}; see its API server's log, then try "
                "again"
            )
        return self._elsewhere(f"{status}: {said}")

    def _elsewhere(self, found: str) -> ConfigurationError:
        return ConfigurationError(
            f"Airflow at {self.url}: expected the API of Airflow 3 there, found {found}; correct the address in the "
            "connection to what [api] base_url is in Airflow's configuration"
        )


def _of(connection: Connection) -> AirflowApi:
    where = f"connection {connection.conn_id}"
    if connection.conn_type != CONN_TYPE:
        raise ConfigurationError(f"{where}: expected the type {CONN_TYPE}, found {connection.conn_type}")
    extras = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
    token = extras.pop("token", None)
    if extras:
        raise ConfigurationError(
            f"{where}: unknown extra {', '.join(map(repr, sorted(extras)))}; expected token, or none"
        )
    if bool(connection.login) != bool(connection.password) or bool(token) == bool(connection.login):
        raise ConfigurationError(
            f"{where}: expected either login and password, or the extra token, found both, neither or one half; "
            "Airflow makes a token of login and password at /auth/token"
        )
    if token is not None and not _is_sendable(token):
        # Not by who finds out when it is sent: that shows it in the error.
        raise ConfigurationError(
            f"{where}: expected a token of ASCII letters without blanks and line breaks, which come along when it is "
            "pasted, found another; correct it"
        )
    return AirflowApi(_url(connection, where), connection.login or None, connection.password or None, token)


def _url(connection: Connection, where: str) -> str:
    """As the http provider's hook reads the fields: a whole address in ``host``, or its parts."""
    host = (connection.host or "").strip().rstrip("/")
    if not host:
        raise ConfigurationError(f"{where}: expected the address of Airflow's API server in the field host, found none")
    port = f":{connection.port}" if connection.port else ""
    url = f"{host}{port}" if "://" in host else f"{connection.schema or 'http'}://{host}{port}"
    if not url.startswith(("http://", "https://")) or not _is_url(url):
        raise ConfigurationError(
            f"{where}: expected an address that begins with http:// or https://, found another one; write it in full "
            "into the field host, as in https://airflow.example.com"
        )
    require_no_password(f"{where}, host", url, "put user and password into the fields for login and password")
    return url


def _is_url(text: str) -> bool:
    try:
        return bool(httpx.URL(text).host)
    except httpx.InvalidURL:
        return False


def _is_sendable(token: object) -> bool:
    return isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token


def _said(answer: httpx.Response) -> str:
    """The server's own words."""
    try:
        detail = answer.json()["detail"]
        words = detail if isinstance(detail, str) else "; ".join(str(one["msg"]) for one in detail)
    except (ValueError, KeyError, TypeError):
        words = answer.reason_phrase
    return words if len(words) <= 300 else f"{words[:300]}…"
