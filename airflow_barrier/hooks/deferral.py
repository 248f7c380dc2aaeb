"""What a deferred task depends on: a triggerer that is alive, and retries."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import conf

#: What a deferred task without retries is exposed to, and what to do.
NO_RETRIES = (
    "Airflow itself now and then fails a deferred task, and an error that a retry would mend holds up the barrier; set "
    "retries=2, for all of the DAG by default_args"
)
#: Seconds for an answer about the triggerer.
_ANSWER = 2.0


def triggerer_fault() -> str | None:
    """Return what keeps a deferred task from ever going on, as far as the API server says it; None: nothing that is
    known.

    The task SDK does not tell. The server that a task talks to may serve nothing but tasks: then this is not known.
    """
    import httpx

    try:
        triggerer = (
            httpx.get(f"{api_server()}/api/v2/monitor/health", timeout=_ANSWER).raise_for_status().json()["triggerer"]
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None
    if triggerer["status"] == "healthy":
        return None
    last = triggerer["latest_triggerer_heartbeat"]
    return (
        f"No triggerer is alive ({f'its last heartbeat was at {last}' if last else 'there never was one'}): this task "
        "stays deferred until there is one; start it: airflow triggerer"
    )


def api_server() -> str:
    """The server that tasks talk to, without a slash at its end."""
    url = conf.get("core", "execution_api_server_url", fallback=None) or conf.get("api", "base_url", fallback=None)
    return (url or "http://localhost:8080").removesuffix("/").removesuffix("/execution")
