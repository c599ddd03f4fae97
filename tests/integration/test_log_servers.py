"""The servers that other tests stand on."""

from __future__ import annotations

import asyncpg

from tensorcast.log.jetstream import connect_log


async def test_both_servers_answer_and_come_back_after_a_crash(
    nats_server, postgres_server, postgres_url
):
    log = await connect_log(nats_server.url, "c", name="test")
    assert await log.last_seq() == 0
    await log.aclose()
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT 1") == 1
    postgres_server.kill()
    nats_server.kill()
    connection.terminate()
    nats_server.start()
    postgres_server.start()
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
