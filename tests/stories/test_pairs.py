"""Two features at a time, each in the middle of the other: all pairs, both orders, over what a deployment may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from airflow_barrier.coordinator.settings import Settings
from tests.metaservice.auditing import check_audit
from tests.recovery.backups import Backups
from tests.stories.features import FEATURES, Feature
from tests.stories.kinds import KINDS
from tests.stories.story import Story, World, told
from tests.support.deployments import settings_on

#: MetaService and catalog; a REST catalog publishes table by table.
DEPLOYMENTS = ("sqlite", "postgresql apart", "sqlite, rest", "postgresql", "sqlite apart", "postgresql, rest")


@dataclass(frozen=True)
class Plot:
    """Two features, and the world that they meet in."""

    features: tuple[Feature, Feature]
    deployment: str
    world: World

    def __str__(self) -> str:
        return "-".join(feature.__name__ for feature in self.features)

    @property
    def levels(self) -> tuple[Any, ...]:
        return (
            self.deployment,
            self.world.kind,
            self.world.priced,
            self.world.away,
            self.world.beside,
            self.world.tag_policy,
        )


def plot(number: int, features: tuple[Feature, Feature]) -> Plot:
    """The steps at which levels change are those with which :func:`test_everything_meets_everything` holds."""
    return Plot(
        features,
        DEPLOYMENTS[number % 6],
        World(
            number,
            KINDS[number // 3 % 3],
            priced=number // 2 % 2 == 0,
            away=number // 4 % 2 == 0,
            beside=number // 5 % 2 == 0,
            tag_policy="newest=31" if number // 6 % 2 else "newest=2",
        ),
    )


PLOTS = tuple(plot(number, features) for number, features in enumerate(permutations(FEATURES, 2)))


@pytest.fixture
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    plot: Plot = request.param
    postgresql = request.getfixturevalue("postgresql")
    with ExitStack() as stack:
        kind, _, rest = plot.deployment.partition(", ")
        settings = stack.enter_context(settings_on(kind, tmp_path, postgresql))
        if rest:
            settings = Settings(
                settings.metaservice_url,
                request.getfixturevalue("rest_server").uri,
                str(tmp_path / "warehouse"),
                metaservice_password=settings.metaservice_password,
            )
        settings = replace(settings, tag_policy=plot.world.tag_policy)
        backups = Backups(settings, tmp_path, postgresql)
        yield stack.enter_context(told(plot.world, backups, f"s{uuid4().hex[:8]}"))


@pytest.mark.drawn("stories")
@pytest.mark.parametrize(("plot", "story"), [(each, each) for each in PLOTS], indirect=["story"], ids=map(str, PLOTS))
def test_a_story(plot: Plot, story: Story) -> None:
    turns = [feature(story) for feature in plot.features]
    while turns and not story.lost:
        for turn in tuple(turns):
            if next(turn, turn) is turn:
                turns.remove(turn)
            story.check()
            if story.lost:
                break
        story.neighbours_day()
    story.finish()
    story.work(story.next_day())
    story.finish()
    story.check()
    story.check_history()
    check_audit(story.backups.url)


def test_everything_meets_everything() -> None:
    """Each feature each level, and each level all levels of other factors."""
    factors = [set(levels) for levels in zip(*(each.levels for each in PLOTS), strict=True)]
    assert [len(levels) for levels in factors] == [6, 3, 2, 2, 2, 2]
    for index, levels in enumerate(factors):
        met = {(feature, each.levels[index]) for each in PLOTS for feature in each.features}
        assert met == set(product(FEATURES, levels))
    for one, other in combinations(range(len(factors)), 2):
        assert {(each.levels[one], each.levels[other]) for each in PLOTS} == set(product(factors[one], factors[other]))
