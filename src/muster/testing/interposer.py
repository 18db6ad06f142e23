"""Carries out the faults of a plan on a broker's requests.

A broker serves a request by the `Api` in its table, looked up for each request. While a plan has rules for a type of
request, its `Api` is exchanged for one without fast paths, whose handler asks the plan; without rules the broker's own
is there, so faults cost nothing that are not there.

A parked request's answer goes through `call.connection`. An effect on answers puts itself there (`_Answers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from muster.broker.net.calls import Api, Call, CallConnection, CloseConnectionError, Sliced, encode_answer
from muster.broker.net.intake import Intake
from muster.errors import ErrorCode
from muster.protocol.primitives import Buffer, Request, Response
from muster.testing import answers
from muster.testing.facts import Facts, facts_of
from muster.testing.rules import APIS, Plan, Rule

Change = Callable[[Response], Response]


class Interposer:
    """The faults of one broker; on its event loop.

    Args:
        table: what the broker serves requests by.
        topic_name: the name of a topic id.
        on_strike: called with the rule and the request, each time that one strikes.
    """

    def __init__(
        self,
        table: dict[int, Api],
        plan: Plan,
        topic_name: Callable[[bytes], str | None],
        on_strike: Callable[[Rule, Facts], None],
    ) -> None:
        self.plan = plan
        self._table = table
        self._own = dict(table)
        self._topic_name = topic_name
        self._on_strike = on_strike
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, list[Callable[[], None]]] = {}
        """What to do for the requests that wait, by the rule that holds them."""
        self._counted = False
        self.before: Callable[[Request[Any]], None] | None = None
        """Called with each request, before any rule strikes at it."""
        self.on_answer: Callable[[Facts, Response], None] | None = None
        """Called with each answer that no rule has changed."""

    def count_requests(self) -> None:
        """Show every request to the plan, also those that no rule is about, so that they are counted."""
        self._counted = True
        self.apply()

    def apply(self) -> None:
        """The plan's rules have changed."""
        named = {APIS[api] for installed in self.plan.installed.values() for api in installed.rule.apis}
        for key, own in self._own.items():
            wanted = self._counted or key in named
            if not wanted:
                self._table[key] = own
            elif self._table[key] is own:
                self._table[key] = self._asking(own)
        for name in self._held.keys() - self.plan.installed.keys():
            self.release(name)

    def release(self, name: str) -> int:
        """Handle the requests that a rule holds; returns how many."""
        waiting = self._held.pop(name, [])
        for proceed in waiting:
            proceed()
        return len(waiting)

    def held(self, name: str) -> int:
        """How many requests a rule holds."""
        return len(self._held.get(name, ()))

    def _asking(self, own: Api) -> Api:
        """An `Api` like the broker's own, which asks the plan first. They share their figures."""
        asking = Api(own.request, own.first, own.last, partial(self._handle, own), own.pipelined)
        asking.most_elements, asking.counts, asking.latency = own.most_elements, own.counts, own.latency
        return asking

    # ------------------------------------------------------------------------------------------------------- requests

    def _handle(self, own: Api, request: Request[Any], call: Call) -> Response | Sliced | None:
        if self.before is not None:
            self.before(request)
        facts = facts_of(request, call.version, call.client_id, self._topic_name)
        rule = self.plan.strike(facts)
        if rule is None:
            if self.on_answer is None:
                return own.handle(request, call)
            return _Answers(None, call, partial(_shown, self.on_answer, facts)).through(
                partial(own.handle, request, call)
            )
        self._on_strike(rule, facts)
        handle = partial(own.handle, request, call)
        match rule.do:
            case "error":
                return self._refuse(facts.api, request, call, handle, rule.error_code)
            case "lose_request":
                raise CloseConnectionError(f"{rule}: the request is lost")
            case "lose_answer" | "cut" | "throttle" | "damage":
                return _Answers(rule, call).through(handle)
            case "delay":
                self._loop.call_later(rule.delay_ms / 1000, self._proceed, call, handle)
            case "hold":
                self._held.setdefault(rule.name, []).append(partial(self._proceed, call, handle))
            case "hang":
                self._held.setdefault(rule.name, []).append(partial(_close, call, f"{rule}: it was removed"))
        call.blocks = True
        return None

    def _refuse(
        self,
        api: str,
        request: Request[Any],
        call: Call,
        handle: Callable[[], Response | Sliced | None],
        error: ErrorCode,
    ) -> Response | Sliced | None:
        if api in answers.READS:
            return _Answers(None, call, partial(answers.with_error, error=error)).through(handle)
        answer: Response = answers.refusal(request, error)
        return answer

    def _proceed(self, call: Call, handle: Callable[[], Response | Sliced | None]) -> None:
        """Handle a request that has waited."""
        if call.over:
            return
        try:
            answer = handle()
        except CloseConnectionError as error:
            call.close(str(error))
            return
        if answer is not None:
            call.reply(answer)


def _shown(watch: Callable[[Facts, Response], None], facts: Facts, answer: Response) -> Response:
    watch(facts, answer)
    return answer


def _close(call: Call, why: str) -> None:
    if not call.over:
        call.close(why)


class _Answers:
    """Between a request's handler and its connection: does to the answer what a rule says."""

    def __init__(self, rule: Rule | None, call: Call, change: Change | None = None) -> None:
        self._rule = rule
        self._change = change or self._changed
        self._call = call
        self._connection: CallConnection = call.connection
        self.client_host: str = call.connection.client_host
        self.peer: str = call.connection.peer
        self.intake: Intake = call.connection.intake

    def through(self, handle: Callable[[], Response | Sliced | None]) -> Response | Sliced | None:
        """Handle the request; its answer comes through here, at once or later."""
        self._call.connection = self
        answer = handle() or self._call.answer
        if answer is None:
            return None
        self._call.answer = None
        self._call.connection = self._connection
        if isinstance(answer, Response):
            return self._struck(answer)
        return self._last(answer)

    def _last(self, steps: Sliced) -> Generator[None, None, Response | None]:
        answer = yield from steps
        return answer if answer is None else self._struck(answer)

    def _struck(self, answer: Response) -> Response | None:
        """The answer to send, where it is not too late to send none."""
        if self._rule is not None and self._rule.do == "lose_answer":
            raise CloseConnectionError(f"{self._rule}: the answer is lost")
        if self._rule is not None and self._rule.do == "cut":
            # Only a parked request's answer can be sent as bytes.
            asyncio.get_running_loop().call_soon(self.answered, self._call, answer)
            return None
        return self._change(answer)

    def _changed(self, answer: Response) -> Response:
        rule = self._rule
        assert rule is not None
        if rule.do == "throttle" and hasattr(answer, "throttle_time_ms"):
            answer.throttle_time_ms = rule.throttle_ms
        elif rule.do == "damage":
            _damage(answer)
        return answer

    # ------------------------------------------------------------------------------------ as `Asker`: answers to come

    def answered(self, call: Call, response: Response | Sliced) -> None:
        """A parked call has its answer."""
        call.connection = self._connection
        if not isinstance(response, Response):
            self._connection.answered(call, self._last(response))
        elif self._rule is not None and self._rule.do in ("lose_answer", "cut"):
            self._end(call, encode_answer(response, call, 1 << 30))
        else:
            self._connection.answered(call, self._change(response))

    def complete(self, call: Call, frame: list[Buffer]) -> None:
        """A parked call has its answer, encoded; only `lose_answer` and `cut` can do something to it."""
        call.connection = self._connection
        if self._rule is not None and self._rule.do in ("lose_answer", "cut"):
            self._end(call, frame)
        else:
            self._connection.complete(call, frame)

    def close(self, why: str) -> None:
        """As the connection's."""
        self._connection.close(why)

    def _end(self, call: Call, frame: list[Buffer]) -> None:
        if self._rule is not None and self._rule.do == "cut":
            whole = b"".join(frame)
            half = whole[: len(whole) // 2]
            call.size = len(half)
            self._connection.complete(call, [half])
        call.over = True
        self._connection.close(f"{self._rule}")


def _damage(answer: Any) -> None:
    """Flip a bit within the last record of each partition's batches: their checksum says so."""
    for topic in answer.responses:
        for partition in topic.partitions:
            records = partition.records
            if not records:
                continue
            # Bytes, views, or for a large answer a FileRange.
            whole = bytearray(b"".join(records) if isinstance(records, list) else bytes(records))
            if whole:
                whole[-1] ^= 0x10
                partition.records = bytes(whole)
