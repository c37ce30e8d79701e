"""The short form of the isolation soak: bad neighbours cost good cameras nothing to speak of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.soak import isolation

EXPECTED: Mapping[str, set[str]] = {
    "refused": {"failed"},
    "silent": {"connecting", "stalled"},
    "locked": {"unauthorized"},
    "unknown_host": {"failed"},
    "empty": {"failed"},
    "undecodable": {"failed"},
    "garbage": {"connecting", "stalled", "failed"},
    "torn": {"connecting", "running", "degraded"},
    "flapping": {"connecting", "running"},
    "frozen": {"connecting", "running", "stalled"},
    "closes": {"connecting", "running"},
    "deaf": {"connecting", "running", "stalled"},
}


def test_good_cameras_keep_their_pictures_beside_one_in_each_kind_of_trouble(
    tmp_path: Path,
) -> None:
    run = isolation.run(tmp_path, copies=1, window_s=3.0, reader="ts", wait=time.sleep)
    wrong = {
        name: state
        for name, state in run.states.items()
        if state not in EXPECTED.get(name.rstrip("0123456789"), {"running"})
    }
    assert wrong == {}
    assert len(run.states) == isolation.GOOD + len(EXPECTED)
    assert sum(run.sent) > 0.9 * isolation.GOOD * isolation.FPS * 3.0, "the server was too slow"
    # No fine timing here: a machine that is busy with other things may hold up anything.
    # (On two cores with a load of 20 all were kept, 38 % of them in budget.)
    assert run.kept > 0.8, run
    assert run.in_budget > 0.05, run


def a_run(answered: int = 1795, in_budget: float = 0.999) -> isolation.Run:
    return isolation.Run(
        sent=(1800.0,) * 8,
        answered=(1800,) * 7 + (answered,),
        captured=(1800,) * 8,
        in_budget=in_budget,
        dropped={},
        up_s=0.1,
        cpu={},
        states={},
    )


def test_the_verdict_finds_what_is_lost() -> None:
    good = a_run()
    assert isolation.short_of([good], [good]) == []
    assert isolation.short_of([good], [a_run(answered=1780)]) != []
    assert isolation.short_of([good], [a_run(in_budget=0.985)]) != []
    assert isolation.short_of([a_run(answered=1000)], [good]) != []
    # The median of the runs counts, not the worst: others use the machine too.
    assert isolation.short_of([good] * 3, [good, good, replace(good, in_budget=0.5)]) == []
