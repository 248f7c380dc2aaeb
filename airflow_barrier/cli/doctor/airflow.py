"""Airflow itself: its components, and the packages beside it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from airflow_barrier.cli.doctor.check import Case, Finding, fail, ok, skipped, warn

_OURS = "airflow-provider-barrier"
#: Seconds for an answer of the API server.
_SECONDS = 5.0
#: Seconds for which one that refuses connections may be starting, where the scheduler runs: `airflow standalone` calls
#: itself ready before.
_STARTING = 20.0


def packages(case: Case) -> Iterator[Finding]:
    found = {name: _version(name) for name in ("pyiceberg", "pyspark", "pyspark-client")}
    said = ", ".join(f"{name} {at or 'none'}" for name, at in found.items())
    if found["pyiceberg"] is None:
        yield fail("packages", f"expected pyiceberg, found none; run: pip install '{_OURS}[iceberg]'")
    both = {found["pyspark"], found["pyspark-client"]} - {None}
    if not both:
        yield warn("packages", f"expected pyspark, found none; for jobs on Spark run: pip install '{_OURS}[spark]'")
    elif len(both) > 1:
        yield fail(
            "packages",
            f"expected pyspark and pyspark-client of one version, found {said}: each overwrites files of the other; "
            f"run: pip install --force-reinstall '{_OURS}[spark]'",
        )
    elif found["pyiceberg"] is not None:
        yield ok("packages", said)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def features(case: Case) -> Iterator[Finding]:
    """Yield the version of Airflow, and what that is without."""
    from airflow_barrier.hooks.features import AIRFLOW, Feature, version_remark

    if remark := version_remark():
        yield warn("Airflow", remark)
        return
    lacking = [feature for feature in Feature if not feature.is_there]
    yield ok("Airflow", f"version {AIRFLOW}" + (", with all that this package can make use of" if not lacking else ""))
    for feature in lacking:
        yield ok("Airflow", f"{AIRFLOW} is without {feature.what}, which came with {feature.since}: {feature.without}")


def components(case: Case) -> Iterator[Finding]:
    """Ask Airflow's database, as `airflow jobs check` does; deferred tasks go on in the triggerer, and only there."""
    from airflow.api.common.airflow_health import get_airflow_health

    from airflow_barrier.hooks.deferral import api_server

    health = get_airflow_health()
    if health["metadatabase"]["status"] != "healthy":
        yield skipped("Airflow", "its database does not answer here; run this where the scheduler runs")
    else:
        yield from (
            _alive(health, component, remedy)
            for component, remedy in (
                ("scheduler", "no task starts"),
                ("triggerer", "tasks that wait stay deferred for ever"),
                ("dag_processor", "DAG files are not read"),
            )
        )
    yield _api_server(api_server(), _STARTING if health["scheduler"]["status"] == "healthy" else 0.0)


def _alive(health: dict[str, Any], component: str, without: str) -> Finding:
    said, name = health[component], component.replace("_", "-")
    if said["status"] == "healthy":
        return ok(name, f"alive, last heartbeat {said[f'latest_{component}_heartbeat']}")
    last = said[f"latest_{component}_heartbeat"]
    found = f"the last one at {last}" if last else "none ever"
    return fail(name, f"expected a heartbeat, found {found}: {without}; start it: airflow {name}")


def _api_server(base_url: str, patience: float) -> Finding:
    import httpx
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

    asking = Retrying(
        retry=retry_if_exception_type(httpx.ConnectError),
        stop=stop_after_delay(patience),
        wait=wait_fixed(1),
        reraise=True,
    )
    url = f"{base_url.rstrip('/')}/api/v2/version"
    try:
        answer = asking(httpx.get, url, timeout=_SECONDS, follow_redirects=True)
        found = f"status {answer.status_code}"
        if answer.status_code == 200:
            return ok("api-server", f"answers at {base_url}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        found = type(error).__name__
        if patience and isinstance(error, httpx.ConnectError):
            found += f" for {patience:.0f} s"
    return warn(
        "api-server",
        f"expected an answer at {base_url}, by which tasks find it, found {found}; start it: airflow api-server, or "
        "correct the option base_url in [api]",
    )
