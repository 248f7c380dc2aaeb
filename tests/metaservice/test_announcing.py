"""Who was told of committed barriers, and who was forgotten."""

from __future__ import annotations

from tests.metaservice.world import World


def test_what_was_committed_and_not_announced_is_known(world: World) -> None:
    for number in (1, 2, 3):
        world.committed(number)
    world.open(4)
    assert world.meta.publishing.unannounced("shopping", 4) == {1: "test", 2: "test", 3: "test"}
    world.meta.publishing.announce("shopping", [1, 3], "commit task")
    assert world.meta.publishing.unannounced("shopping", 4) == {2: "test"}
    assert world.meta.publishing.unannounced("shopping", 2) == {}, "only those before"
    (said,) = [entry for entry in world.meta.audit.newest("shopping", 3) if entry.event == "announced"]
    assert (said.actor, said.before, said.after) == ("commit task", "COMMIT", "COMMIT")


def test_a_look_goes_back_a_hundred_barriers(world: World) -> None:
    world.committed(1)
    assert world.meta.publishing.unannounced("shopping", 101) == {1: "test"}
    assert world.meta.publishing.unannounced("shopping", 102) == {}
