"""Applies the faults of a plan to a broker's requests.

A broker looks up the `Api` of each request in a table. While the plan has a rule for a type of request, the table has
another `Api` for it, without fast paths, whose handler consults the plan. Other types keep the broker's own `Api`, so
a broker without faults is as fast as ever.

The response to a parked request goes to `call.connection`. To change a response, `_Responses` takes its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

from muster.broker.net.calls import Api, Call, CallConnection, CloseConnectionError, Sliced, encode_answer
from muster.broker.net.intake import Intake
from muster.errors import ErrorCode
from muster.protocol.primitives import Buffer, Request, Response
from muster.testing.rules import error_answers
from muster.testing.rules.facts import Facts, facts_of
from muster.testing.rules.faults import APIS, FaultPlan, Rule

ResponseChange = Callable[[Response], Response]


class Interposer:
    """The faults of one broker; on its event loop.

    Args:
        table: the broker's `Api` for each API key.
        topic_name: returns the name of a topic id.
        on_strike: called with the rule and the request each time that a rule strikes.
    """

    def __init__(
        self,
        table: dict[int, Api],
        plan: FaultPlan,
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
        """For each rule, functions that release the requests that it holds."""
        self._count_all = False
        self.before: Callable[[Request[Any]], None] | None = None
        """Called with each request, before any rule strikes it."""
        self.on_answer: Callable[[Facts, Response], None] | None = None
        """Called with each response that no rule has changed."""

    def count_requests(self) -> None:
        """From now on, pass every request to the plan, so that it also counts requests that match no rule."""
        self._count_all = True
        self.apply()

    def apply(self) -> None:
        """Follow a change of the plan's rules."""
        with_rules = {APIS[api] for installed in self.plan.installed.values() for api in installed.rule.apis}
        for key, own in self._own.items():
            if not self._count_all and key not in with_rules:
                self._table[key] = own
            elif self._table[key] is own:
                self._table[key] = self._interposed(own)
        for name in self._held.keys() - self.plan.installed.keys():
            self.release(name)

    def release(self, name: str) -> int:
        """Release the requests that a rule holds. Returns how many."""
        waiting = self._held.pop(name, [])
        for proceed in waiting:
            proceed()
        return len(waiting)

    def held(self, name: str) -> int:
        """How many requests a rule holds."""
        return len(self._held.get(name, ()))

    def _interposed(self, own: Api) -> Api:
        """An `Api` like the broker's own, which consults the plan first. They share their metrics."""
        api = Api(own.request, own.first, own.last, partial(self._handle, own), own.pipelined)
        api.most_elements, api.counts, api.latency = own.most_elements, own.counts, own.latency
        return api

    # ------------------------------------------------------------------------------------------------------- requests

    def _handle(self, own: Api, request: Request[Any], call: Call) -> Response | Sliced | None:
        if self.before is not None:
            self.before(request)
        facts = facts_of(request, call.version, call.client_id, self._topic_name)
        rule = self.plan.strike(facts)
        handle = partial(own.handle, request, call)
        if rule is None:
            if self.on_answer is None and not self.plan.may_damage(facts):
                return handle()
            return _Responses(None, call, partial(self._on_response, facts)).through(handle)
        self._on_strike(rule, facts)
        match rule.do:
            case "error":
                return self._refuse(facts.api, request, call, handle, rule.error_code)
            case "lose_request":
                raise CloseConnectionError(f"{rule}: the request is lost")
            case "lose_answer" | "cut" | "throttle":
                return _Responses(rule, call).through(handle)
            case "delay":
                self._loop.call_later(rule.delay_ms / 1000, self._proceed, call, handle)
            case "hold":
                self._held.setdefault(rule.name, []).append(partial(self._proceed, call, handle))
            case "hang":
                self._held.setdefault(rule.name, []).append(partial(_close, call, f"{rule}: the fault was removed"))
        call.blocks = True
        return None

    def _on_response(self, facts: Facts, response: Response) -> Response:
        """The response to a request that no rule struck: damaged if a rule strikes its records."""
        if self.plan.may_damage(facts):
            found = _with_records(response, self._topic_name)
            facts_of_records = replace(facts, partitions={topic: frozenset(found[topic]) for topic in found})
            rule = self.plan.strike_records(facts_of_records)
            if rule is not None:
                self._on_strike(rule, facts_of_records)
                for topic, partitions in found.items():
                    for index, partition in partitions.items():
                        if rule.selects(topic, index):
                            _damage(partition)
                return response
        if self.on_answer is not None:
            self.on_answer(facts, response)
        return response

    def _refuse(
        self,
        api: str,
        request: Request[Any],
        call: Call,
        handle: Callable[[], Response | Sliced | None],
        error: ErrorCode,
    ) -> Response | Sliced | None:
        if api in error_answers.READS:
            return _Responses(None, call, partial(error_answers.with_error, error=error)).through(handle)
        response: Response = error_answers.refusal(request, error)
        return response

    def _proceed(self, call: Call, handle: Callable[[], Response | Sliced | None]) -> None:
        """Handle a request that was delayed or held."""
        if call.over:
            return
        try:
            response = handle()
        except CloseConnectionError as error:
            call.close(str(error))
            return
        if response is not None:
            call.reply(response)


def _close(call: Call, why: str) -> None:
    if not call.over:
        call.close(why)


class _Responses:
    """Between a request's handler and its connection: changes or loses the response, as a rule says."""

    def __init__(self, rule: Rule | None, call: Call, change: ResponseChange | None = None) -> None:
        self._rule = rule
        self._change = change or self._apply_rule
        self._call = call
        self._connection: CallConnection = call.connection
        self.client_host: str = call.connection.client_host
        self.peer: str = call.connection.peer
        self.intake: Intake = call.connection.intake

    def through(self, handle: Callable[[], Response | Sliced | None]) -> Response | Sliced | None:
        """Handle the request. Its response passes through this object, immediately or later."""
        self._call.connection = self
        response = handle() or self._call.answer
        if response is None:
            return None
        self._call.answer = None
        self._call.connection = self._connection
        if isinstance(response, Response):
            return self._to_send(response)
        return self._after(response)

    def _after(self, steps: Sliced) -> Generator[None, None, Response | None]:
        response = yield from steps
        return response if response is None else self._to_send(response)

    def _to_send(self, response: Response) -> Response | None:
        """What the handler returns in place of the response."""
        if self._rule is not None and self._rule.do == "lose_answer":
            raise CloseConnectionError(f"{self._rule}: the answer is lost")
        if self._rule is not None and self._rule.do == "cut":
            # Only the response to a parked request can be sent as bytes.
            asyncio.get_running_loop().call_soon(self.answered, self._call, response)
            return None
        return self._change(response)

    def _apply_rule(self, response: Response) -> Response:
        rule = self._rule
        assert rule is not None
        if rule.do == "throttle" and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = rule.throttle_ms
        return response

    # ---------------------------------------------------------------------- as `Asker`: responses to parked requests

    def answered(self, call: Call, response: Response | Sliced) -> None:
        """The response to a parked request."""
        call.connection = self._connection
        if not isinstance(response, Response):
            self._connection.answered(call, self._after(response))
        elif self._rule is not None and self._rule.do in ("lose_answer", "cut"):
            self._end(call, encode_answer(response, call, 1 << 30))
        else:
            self._connection.answered(call, self._change(response))

    def complete(self, call: Call, frame: list[Buffer]) -> None:
        """The encoded response to a parked request: only `lose_answer` and `cut` can have an effect on it."""
        call.connection = self._connection
        if self._rule is not None and self._rule.do in ("lose_answer", "cut"):
            self._end(call, frame)
        else:
            self._connection.complete(call, frame)

    def close(self, why: str) -> None:
        """Close the connection."""
        self._connection.close(why)

    def _end(self, call: Call, frame: list[Buffer]) -> None:
        if self._rule is not None and self._rule.do == "cut":
            whole = b"".join(frame)
            half = whole[: len(whole) // 2]
            call.size = len(half)
            self._connection.complete(call, [half])
        call.over = True
        self._connection.close(f"{self._rule}")


def _with_records(response: Any, topic_name: Callable[[bytes], str | None]) -> dict[str, dict[int, Any]]:
    """The partitions in a Fetch response that have records, by topic and index."""
    found: dict[str, dict[int, Any]] = {}
    for topic in response.responses:
        name = topic_name(topic.topic_id) if any(topic.topic_id) else topic.topic
        partitions = {each.partition_index: each for each in topic.partitions if _bytes_of(each.records)}
        if partitions:
            found[name or ""] = partitions
    return found


def _bytes_of(records: Any) -> bytearray:
    """The record batches of a partition: bytes, views, or, for a large answer, a FileRange."""
    return bytearray(b"".join(records) if isinstance(records, list) else bytes(records or b""))


def _damage(partition: Any) -> None:
    """Flip a bit in the last record of a partition's batches, so that their checksum does not match."""
    whole = _bytes_of(partition.records)
    whole[-1] ^= 0x10
    partition.records = bytes(whole)
