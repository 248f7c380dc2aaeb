"""Any other operator: its author says where the conf goes.

    SSHOperator(task_id="load", command=f"spark-submit {BARRIER_CONF} load.py")
    KubernetesPodOperator(task_id="load", cmds=["spark-submit"], arguments=[BARRIER_CONF, "load.py"])
    SomeOperator(task_id="load", spark_properties=BARRIER_CONF)

Within text it becomes quoted ``--conf`` arguments for a shell, as an item of a list it becomes items ``--conf`` and
``key=value``, and as the value of an attribute or of a key in a dictionary it becomes a dictionary. Only templated
fields are looked at. The attempt is known only when the task runs, after Airflow has rendered them, so no Jinja
template will do.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from airflow_barrier.operators.handover.port import Handing

#: Stands for the conf of the attempt.
BARRIER_CONF = "@@barrier_conf@@"


def is_in(operator: Any) -> bool:
    """Return whether a templated field of the operator holds the placeholder."""
    return any(_holds(getattr(operator, name, None)) for name in operator.template_fields)


def refusal(operator: Any) -> str | None:
    return None


def spark_version(operator: Any) -> str | None:
    return None


def hand_over(operator: Any, handing: Handing) -> None:
    for name in operator.template_fields:
        value = getattr(operator, name, None)
        if _holds(value):
            setattr(operator, name, _filled(value, handing.conf))


def _holds(value: Any) -> bool:
    if isinstance(value, str):
        return BARRIER_CONF in value
    if isinstance(value, Mapping):
        return any(map(_holds, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds, value))


def _filled(value: Any, conf: Mapping[str, str]) -> Any:
    if value == BARRIER_CONF:
        return dict(conf)
    if isinstance(value, str):
        shell = " ".join(f"--conf {shlex.quote(f'{key}={each}')}" for key, each in conf.items())
        return value.replace(BARRIER_CONF, shell)
    if isinstance(value, Mapping):
        return {key: _filled(each, conf) for key, each in value.items()}
    if isinstance(value, list | tuple):
        items: list[Any] = []
        for each in value:
            items += conf_arguments(conf) if each == BARRIER_CONF else [_filled(each, conf)]
        return type(value)(items)
    return value


def conf_arguments(conf: Mapping[str, str]) -> list[str]:
    """The conf as arguments of spark-submit."""
    return [argument for key, value in conf.items() for argument in ("--conf", f"{key}={value}")]
