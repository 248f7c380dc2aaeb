"""Only the transitions of the protocol, and all states accounted for."""

from __future__ import annotations

from itertools import product

import pytest

from airflow_barrier.protocol.errors import IllegalTransitionError
from airflow_barrier.protocol.revisions import REVISION_TRANSITIONS, RevisionState
from airflow_barrier.protocol.states import (
    ATTEMPT_TRANSITIONS,
    BARRIER_TRANSITIONS,
    DECIDED_BARRIERS,
    LIVE_ATTEMPTS,
    STAGING_BARRIERS,
    TABLE_TRANSITIONS,
    UNCOMMITTED_BARRIERS,
    AttemptState,
    BarrierState,
    TableState,
    check_transition,
)

ALLOWED = {
    *((BarrierState(a), BarrierState(b)) for a, b in [
        ("OPEN", "PRECOMMIT"), ("OPEN", "ABORTED"),
        ("PRECOMMIT", "OPEN"), ("PRECOMMIT", "COMMITTING"), ("PRECOMMIT", "ABORTED"),
        ("COMMITTING", "COMMIT"), ("COMMITTING", "BLOCKED"), ("BLOCKED", "COMMITTING"),
    ]),
    *((TableState(a), TableState(b)) for a, b in [
        ("PENDING", "PROCESSED"), ("PROCESSED", "WRITTEN"), ("PROCESSED", "PENDING"),
    ]),
    *((AttemptState(a), AttemptState(b)) for a, b in [
        ("REQUESTED", "RUNNING"), ("RUNNING", "CLOSED"), ("CLOSED", "PROCESSED"),
        *product(("REQUESTED", "RUNNING", "CLOSED"), ("FENCED", "VOIDED", "ABORTED")),
        ("PROCESSED", "FENCED"), ("PROCESSED", "VOIDED"),
    ]),
}  # fmt: skip
REVISIONS_ALLOWED = {
    (RevisionState(a), RevisionState(b))
    for a, b in [("STAGING", "COMMITTING"), ("STAGING", "CANCELLED"), ("COMMITTING", "COMMIT")]
}


@pytest.mark.kills("illegal-transition", "barrier-transitions", "table-transitions", "attempt-transitions")
@pytest.mark.parametrize("states", [BarrierState, TableState, AttemptState])
def test_exactly_the_protocols_transitions(states: type[BarrierState] | type[TableState] | type[AttemptState]) -> None:
    for before, after in product(states, states):
        if (before, after) in ALLOWED:
            check_transition("it", before, after)
        else:
            with pytest.raises(IllegalTransitionError, match=f"it is {before.value} and cannot become {after.value}"):
                check_transition("it", before, after)


@pytest.mark.kills("revision-transitions")
def test_exactly_the_revisions_transitions() -> None:
    found = {(before, after) for before, there in REVISION_TRANSITIONS.items() for after in there}
    assert found == REVISIONS_ALLOWED


@pytest.mark.kills("staging-barriers", "uncommitted-barriers", "decided")
def test_every_state_has_its_transitions_and_every_barrier_its_group() -> None:
    assert set(BARRIER_TRANSITIONS) == set(BarrierState)
    assert set(TABLE_TRANSITIONS) == set(TableState)
    assert set(ATTEMPT_TRANSITIONS) == set(AttemptState)
    assert set(REVISION_TRANSITIONS) == set(RevisionState)
    assert STAGING_BARRIERS | DECIDED_BARRIERS | {BarrierState.ABORTED} == set(BarrierState)
    assert not STAGING_BARRIERS & DECIDED_BARRIERS
    assert set(BarrierState) - {BarrierState.COMMIT, BarrierState.ABORTED} == UNCOMMITTED_BARRIERS


@pytest.mark.kills("live-attempts")
def test_what_has_ended_stays_ended() -> None:
    for state in set(AttemptState) - LIVE_ATTEMPTS:
        assert not ATTEMPT_TRANSITIONS[state]


def test_the_message_says_what_may_follow() -> None:
    with pytest.raises(IllegalTransitionError, match=r"what may follow COMMITTING: BLOCKED, COMMIT$"):
        check_transition("barrier 3", BarrierState.COMMITTING, BarrierState.ABORTED)
    with pytest.raises(IllegalTransitionError, match=r"nothing \(it is final\)"):
        check_transition("barrier 3", BarrierState.COMMIT, BarrierState.OPEN)
