"""The step in which a member of the demo leaves."""

from __future__ import annotations

from typing import Any

from muster.demo.run.job import DemoJob


class Member:
    """Records how much time it had to end before it would be killed."""

    patience_s = 0.0

    async def stop(self, patience_s: float = 10.0) -> None:
        self.patience_s = patience_s


async def test_a_member_that_leaves_is_not_killed_because_the_machine_is_busy() -> None:
    """Its session would expire, and the demo would wait in vain for a member to leave."""

    class LeavingJob(DemoJob):
        def __init__(self, member: Any) -> None:
            self._members = {"python-1": member}

        async def _settled(self, members: int, who: str, timeout_s: float = 0) -> None:
            assert members == 3

    member = Member()
    await LeavingJob(member)._leave()
    assert member.patience_s >= 120
