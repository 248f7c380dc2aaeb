"""Who is told when a barrier does not come, and numbers for a monitoring system.

It watches all topologies of the deployment, whoever's DAGs they are of. The mail server is Airflow's connection
`smtp_default`; any other notifier of Airflow's (Slack, Teams, PagerDuty...) goes beside or instead. See docs/alerts.md.
"""

from datetime import datetime, timedelta, timezone

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG

from airflow_barrier.operators.watch import WatchBarriersOperator

with DAG(
    "shopping_watch",
    schedule="*/5 * * * *",
    start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
) as dag:
    WatchBarriersOperator(
        task_id="watch",
        notifiers=[
            SmtpNotifier(
                from_email="airflow@example.com",
                to="data-team@example.com",
                subject="{{ signal.topology }}: {{ signal.kind }}",
                html_content="{{ signal.summary | e }}",
            )
        ],
    )
