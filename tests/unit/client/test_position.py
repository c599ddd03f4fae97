import asyncio

from tensorcast.client.position import Position
from tensorcast.schema.api import Ask, Show


async def test_a_read_waits_for_what_was_accepted_and_includes_it():
    position = Position()
    position.advance(3)
    assert await position.include(Show(what="m", after=1)) == Show(what="m", after=1)
    write = asyncio.get_running_loop().create_future()
    position.expect(write)
    reading = asyncio.ensure_future(position.include(Show(what="m", after=3)))
    await asyncio.sleep(0)
    assert not reading.done()
    position.advance(9)
    position.advance(5)
    write.set_result(None)
    assert await reading == Show(what="m", after=9)
    await position.settled()


async def test_what_has_no_position_is_only_waited_for():
    position = Position()
    write = asyncio.get_running_loop().create_future()
    position.expect(write)
    asking = asyncio.ensure_future(position.include(Ask()))
    await asyncio.sleep(0)
    assert not asking.done()
    write.set_result(None)
    assert await asking == Ask()


async def test_a_child_does_not_wait_for_its_parent():
    position = Position()
    position.expect(asyncio.get_running_loop().create_future())
    position.forget()
    await position.settled()
