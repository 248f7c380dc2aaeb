"""From a task to the page of its barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

#: Where the API server serves the plugin's pages.
URL_PREFIX = "/barrier"


class BarrierLink(BaseOperatorLink):
    """The tables of the barrier that a task works for, and how far each of them is; or the revision that it is for."""

    name = "Barrier"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Called in the worker once the task has ended; empty if it ended before it knew its barrier."""
        # jobs know it by their steps, which they have from their group
        path: str | None = getattr(getattr(operator, "_steps", operator), "link_path", None)
        if path is None:
            return ""
        return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}{URL_PREFIX}/{path}"
