"""Watches one topology, and tells what happens to it by mail."""

from datetime import datetime, timezone

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG

from airflow_barrier.operators.watch import WatchBarriersOperator

with DAG(
    "watching",
    schedule="* * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
):
    WatchBarriersOperator(
        task_id="watch",
        topologies=["watched"],
        notifiers=[
            SmtpNotifier(
                smtp_conn_id="watching_mail",
                from_email="airflow@example.com",
                to="data@example.com",
                subject="{{ signal.topology }}: {{ signal.kind }}",
                html_content="{{ signal.summary | e }}",
            )
        ],
    )
