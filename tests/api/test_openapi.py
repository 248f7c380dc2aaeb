"""Whatever the API's OpenAPI allows, and what it does not, is asked: answers are as they are declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from airflow_barrier.api.server import Served, create_server
from airflow_barrier.api.tokens import Tokens, add_token
from airflow_barrier.coordinator.deployment import nobody_gets_in
from airflow_barrier.metaservice.store import MetaService
from tests.api.scene import declared, everything

#: Of each route and kind of question. Failures are the same each time.
_EXAMPLES = 25
#: A parameter that no route knows is passed over, as everywhere; who asks is said by the test.
_CONFIG = SchemathesisConfig.from_dict(
    {"generation": {"allow-extra-parameters": False, "with-security-parameters": False}}
)


def test_answers_are_as_declared(meta: MetaService, tmp_path: Path) -> None:
    """Of `airflow-barrier serve` over one of everything: no 5xx; statuses, content types and bodies as in the OpenAPI;
    a 422 for what it does not allow, and a 401 for who has no token, or a wrong one. What changes something is a 403.
    """
    everything(declared(meta))
    file = tmp_path / "tokens"
    headers = {"Authorization": f"Bearer {add_token(file, 'anybody', [])}"}
    app = create_server(Served("prod", meta, nobody_gets_in), Tokens(file))
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", app, config=_CONFIG, headers=headers.copy())
    # the stream has no end: tests/api/test_events.py
    operations = [found.ok() for found in schema.exclude(operation_id="events").get_all_operations()]
    assert len(operations) == sum(map(len, app.openapi()["paths"].values())) - 1
    before = meta.audit.newest("shop", limit=10_000)
    for operation in operations:
        statuses, acts = (
            _statuses(operation, headers),
            409 in map(int, filter(str.isdigit, operation.definition.raw["responses"])),
        )
        assert (200 in statuses, 403 in statuses) == (not acts, acts), operation.label
    assert meta.audit.newest("shop", limit=10_000) == before


def _statuses(operation: Any, headers: dict[str, str]) -> set[int]:
    """Of the answers to questions about what is there, about anything, and that are not allowed."""
    found = set()
    names = {each.name for each in operation.path_parameters}
    numbers = names & {"barrier_id", "revision", "lease_id"}
    there = {name: value for name, value in {"deployment": "prod", "topology": "shop"}.items() if name in names}
    known = [{**there, **dict.fromkeys(numbers, number)} for number in range(1, 4 if numbers else 2)]
    kinds = [*(operation.as_strategy(path_parameters=each) for each in known), operation.as_strategy()]
    if numbers or operation.query or operation.body:
        kinds.append(operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=there))

    @settings(
        max_examples=_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(kinds))
    def ask(case: Any) -> None:
        found.add(case.call_and_validate(headers=headers).status_code)

    ask()
    return found
