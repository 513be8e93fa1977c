"""kafka-python's clients, whose sockets are closed when the client is.

kafka-python's event loop cancels its tasks when it is closed. A transport that still has bytes to send, and a
connection attempt, leave the close of their socket to such a task. The socket then lasts until a garbage collection,
which may be in another test.
"""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakKeyDictionary

with warnings.catch_warnings():
    # imports of deprecated modules
    warnings.simplefilter("ignore")
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.selector import NetworkSelector

__all__ = ["KafkaConsumer", "KafkaProducer"]

_sockets: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
_connect, _close = KafkaNetSocket.sock_connect, NetworkSelector.close


async def _noting_connect(self: Any, net: Any, sock: Any, *arguments: Any, **named: Any) -> Any:
    _sockets.setdefault(net, []).append(sock)
    return await _connect(self, net, sock, *arguments, **named)


def _closing_close(self: Any) -> None:
    _close(self)
    for sock in _sockets.pop(self, ()):
        sock.close()


KafkaNetSocket.sock_connect, NetworkSelector.close = _noting_connect, _closing_close
