"""Network of the simulation: delays, loses and repeats messages."""

from __future__ import annotations

from typing import Any, Callable

from simulation.broker import Broker
from simulation.clock import SimulationClock
from support.message_fields import encoded_and_decoded

ONE_WAY_MS = 2
Trace = Callable[[str], None]


class Link:
    """Connection of one client, with one request at a time."""

    def __init__(self, time: SimulationClock, broker: Broker, name: str, trace: Trace | None) -> None:
        self.cut_until_ms = 0
        self._time = time
        self._broker = broker
        self._name = name
        self._trace = trace
        self._faults: list[tuple[str, int]] = []

    def arm(self, fault: str, ms: int) -> None:
        """Applies a fault to the next request."""
        self._faults.append((fault, ms))

    def repair(self) -> None:
        """Ends all faults."""
        self._faults.clear()
        self.cut_until_ms = 0

    def send(self, request: Any, version: int, on_response: Callable[[Any], None], in_bytes: bool) -> None:
        """Sends a request; `on_response` may never be called.

        `in_bytes`: encodes and decodes the messages, because old versions lack fields. False saves time.
        """
        faults, self._faults = dict(self._faults), []
        if self._trace is not None:
            self._trace(f"{self._time.now_ms} {self._name} sends v{version} {request} {faults or ''}")
        if self._is_cut or "lose-request" in faults:
            return
        if in_bytes:
            request = encoded_and_decoded(request, version)
        delay_ms = ONE_WAY_MS + faults.get("slow-request", 0)
        crashes = self._broker.crashes

        def arrive(last: bool) -> None:
            if crashes == self._broker.crashes and not self._is_cut:
                self._broker.receive(request, version, self._name, respond if last else _drop)

        def respond(response: Any) -> None:
            if self._trace is not None:
                self._trace(f"{self._time.now_ms} {self._name} gets {response}")
            if "lose-response" not in faults:
                response = encoded_and_decoded(response, version) if in_bytes else response
                self._time.call_in(ONE_WAY_MS + faults.get("slow-response", 0), receive, response)

        def receive(response: Any) -> None:
            if crashes == self._broker.crashes and not self._is_cut:
                on_response(response)

        repeated = "repeat" in faults
        self._time.call_in(delay_ms, arrive, not repeated)
        if repeated:
            # as after a reconnect: the client reads the later response
            self._time.call_in(delay_ms + faults["repeat"], arrive, True)

    @property
    def _is_cut(self) -> bool:
        return self._time.now_ms < self.cut_until_ms


def _drop(response: Any) -> None:
    """Drops the response of a lost connection."""
