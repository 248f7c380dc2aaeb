"""Names that outlive us, and which tags are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.names import BranchName, Stamp, event_key, is_topology_name, parse_branch, tag_name
from airflow_barrier.protocol.tags import TagPolicy

names = st.from_regex(r"\A[A-Za-z][A-Za-z0-9_-]{0,99}\Z")
numbers = st.integers(min_value=0, max_value=10**12)


@given(names, numbers, numbers, numbers)
def test_a_branch_name_can_be_taken_apart_again(topology: str, barrier: int, revision: int, attempt: int) -> None:
    branch = Stamp(topology, barrier, revision, attempt, "i").branch
    assert parse_branch(branch) == BranchName(topology, barrier, revision, attempt)


@given(names)
def test_names_that_make_branches_are_topology_names(topology: str) -> None:
    assert is_topology_name(topology)


@pytest.mark.parametrize(
    "branch", ["main", "audit", "barrier_shopping_b1_r0", "barrier_shopping_bx_r0_a1", "xbarrier_shopping_b1_r0_a1"]
)
def test_other_peoples_branches_are_left_alone(branch: str) -> None:
    assert parse_branch(branch) is None


def test_a_tag_is_not_taken_for_a_branch() -> None:
    assert tag_name("shopping", 7, 0) == "barrier_shopping_b7_r0"
    assert parse_branch(tag_name("shopping", 7, 0)) is None


def test_the_stamp_says_everything_as_text() -> None:
    assert Stamp("shopping", 7, 0, 12, "abc").properties() == {
        "barrier.topology": "shopping",
        "barrier.id": "7",
        "barrier.revision": "0",
        "barrier.attempt": "12",
        "barrier.incarnation": "abc",
    }


def test_event_keys_differ_by_barrier_and_revision() -> None:
    assert len({event_key(b, r) for b in (1, 11) for r in (1, 11)}) == 4


@pytest.mark.parametrize(
    "text", ["", "none", "all", "every=0", "every=", "newest=-1", "newest=1.5", "all=3", "every=2 newest=2"]
)
def test_a_tag_policy_that_is_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected 'every=N' \(1: all\) or 'newest=K'"):
        TagPolicy.parse(text)


policies = st.one_of(
    st.integers(1, 8).map(lambda n: TagPolicy(every=n)),
    st.integers(1, 8).map(lambda k: TagPolicy(newest=k)),
)


@given(policies, st.lists(st.integers(1, 6), min_size=1, max_size=30))
def test_dropping_step_by_step_leaves_exactly_what_the_policy_keeps(policy: TagPolicy, steps: list[int]) -> None:
    """Whatever barriers are aborted between (ids skip), the tags there are those of published barriers to be kept."""
    tags: set[int] = set()
    previous = 0
    for step in steps:
        newest = previous + step
        tags.add(newest)
        tags -= set(policy.dropped(previous, newest))
        assert tags == {barrier for barrier in tags if policy.keeps(barrier, newest)}
        previous = newest


@given(st.integers(1, 8), st.lists(st.integers(1, 3), min_size=1, max_size=60))
def test_newest_keeps_tags_bounded(keep: int, steps: list[int]) -> None:
    policy, tags, previous = TagPolicy(newest=keep), set[int](), 0
    for step in steps:
        newest = previous + step
        tags = (tags | {newest}) - set(policy.dropped(previous, newest))
        assert len(tags) <= keep
        previous = newest
