"""How often a MetaService is asked that does not answer."""

from __future__ import annotations

from airflow_barrier.coordinator.watching import Pace


def test_pauses_grow_while_there_is_no_answer_and_are_what_they_were_after_one() -> None:
    pace = Pace(1.0)
    usual = pace.pause()
    assert 0.8 <= usual <= 1.2
    expected = [1, 2, 4, 8, 8]
    for longer in expected:
        pace.failed()
        assert pace.is_slow
        assert 0.8 * longer <= pace.pause() <= 1.2 * longer
    pace.answered()
    assert not pace.is_slow
    assert 0.8 <= pace.pause() <= 1.2
