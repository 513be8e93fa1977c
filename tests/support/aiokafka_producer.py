"""A record sent by aiokafka's producer."""

from __future__ import annotations

import asyncio
from typing import Any


def send_by_aiokafka(bootstrap_servers: str, topic: str, **settings: Any) -> int:
    """Sends a record with aiokafka's `settings`, within 30 s; returns its offset."""
    from aiokafka import AIOKafkaProducer

    async def send() -> int:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, **settings)
        await producer.start()
        sent = await producer.send_and_wait(topic, b"v")
        await producer.stop()
        return int(sent.offset)

    return asyncio.run(asyncio.wait_for(send(), 30))
