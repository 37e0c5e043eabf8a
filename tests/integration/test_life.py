"""A model of the operation's life against a real Postgres: whatever happens, in whatever order, the promises
hold. Hypothesis chooses what happens, and shows the shortest story that breaks one.
"""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fix_postgres import clone
from fix_scene import Scene
from fix_versions import measured
from life import Life
from relay.embedded_postgres import EmbeddedPostgres

STORIES = 12
STEPS = 60
which = st.integers(min_value=0, max_value=10**6)


@pytest.mark.slow
def test_whatever_happens_in_whatever_order_the_promises_hold(
    postgres: EmbeddedPostgres, migrated_template: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    tried: Counter[str] = Counter()

    class Story(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.loop = asyncio.new_event_loop()
            self.database = clone(postgres, migrated_template, "story")
            self.scene = Scene(self.database, tmp_path)
            self.scene.__enter__()

        def do(self, happening: Any) -> Any:
            return self.loop.run_until_complete(happening)

        @initialize(seed=which)
        def begin(self, seed: int) -> None:
            self.life = Life(self.scene, seed)
            self.life.approve()
            self.life.approve()

        def one(self, items: list[Any], number: int) -> Any:
            return items[number % len(items)] if items else None

        @rule()
        def approve(self) -> None:
            if len(self.life.world.operations) < 6:
                self.life.approve()

        @rule(number=which, stale=st.booleans())
        def a_dispatcher_handles_an_event(self, number: int, stale: bool) -> None:
            self.do(self.life.claim(self.one(self.life.world.operations, number), stale=stale))

        @rule(number=which, again=st.booleans())
        def the_hook_is_called(self, number: int, again: bool) -> None:
            claimed = self.one(self.life.world.claimed, number)
            if claimed is not None:
                self.do(self.life.begin(claimed))
                if not again:
                    self.life.world.claimed.remove(claimed)

        @rule(number=which)
        def a_dispatcher_dies(self, number: int) -> None:
            claimed = self.one(self.life.world.claimed, number)
            if claimed is not None:
                self.life.world.claimed.remove(claimed)

        @rule(number=which)
        def a_dispatcher_holds(self, number: int) -> None:
            claimed = self.one(self.life.world.claimed, number)
            if claimed is not None:
                self.do(self.life.hold(claimed))

        @rule(number=which)
        def an_answer_comes_in(self, number: int) -> None:
            post = self.one(self.life.world.posts, number)
            if post is not None:
                self.do(self.life.answer(post))

        @rule(number=which)
        def the_newest_answer_comes_in(self, number: int) -> None:
            silent = [post for post in self.life.world.posts if not post.told]
            if silent:
                self.do(self.life.answer(silent[-1]))

        @rule(number=which)
        def a_job_is_observed(self, number: int) -> None:
            self.do(self.life.observe(self.one(self.life.world.operations, number)))

        @rule(seconds=st.sampled_from([1, 30, 61, 120, 3600, 86_400]))
        def time_passes(self, seconds: int) -> None:
            self.life.time_passes(f"{seconds} seconds")

        @rule()
        def the_timers_look(self) -> None:
            self.do(self.life.schedule())

        @rule(number=which)
        def a_person_decides(self, number: int) -> None:
            self.do(self.life.decide())

        @rule(number=which)
        def somebody_cancels(self, number: int) -> None:
            self.do(self.life.cancel(self.one(self.life.world.operations, number)))

        @rule(limit=st.sampled_from([0, 2, 5, 1000]))
        def the_limit_changes(self, limit: int) -> None:
            self.do(self.life.allow(limit))

        @invariant()
        def nothing_is_wrong(self) -> None:
            if hasattr(self, "life"):
                assert self.do(self.life.wrong()) == []

        def teardown(self) -> None:
            try:
                if hasattr(self, "life"):
                    stuck = self.do(self.life.settle())
                    assert stuck == []
                    assert self.do(self.life.wrong()) == []
                    self.do(self.life.close())
                    tried.update(self.life.world.tried)
            finally:
                self.scene.__exit__()
                self.database.drop()
                self.loop.close()

    run_state_machine_as_test(
        Story,
        settings=settings(
            max_examples=STORIES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    measured(pytestconfig, "stories of an operation's life", f"{STORIES} of {STEPS} steps: {dict(tried)}")
    # A story in which nothing happens proves nothing.
    assert {"claim: won", "submit: won", "answer accepted: won", "decide: won"} <= set(tried)
