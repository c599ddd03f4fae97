import asyncio
import logging

import pytest

from tensorcast.client.patience import Patience


async def test_whom_it_waits_for_is_told_once_for_each_silence(caplog):
    caplog.set_level(logging.WARNING)
    patience = Patience("the control plane of cluster c")
    told = asyncio.Event()
    patience._tell, tell = lambda after_s: (tell(after_s), told.set()), patience._tell
    with pytest.raises(ValueError, match="gone"):
        await patience.wait(_fail(told), 0.0)
    told.clear()
    assert await patience.wait(_answer(told), 0.0) == 7
    assert caplog.messages == [
        "Waiting for the control plane of cluster c, which has not answered for 0 s."
    ]
    told.clear()
    await patience.wait(_answer(told), 0.0)  # it had answered: this silence is another one
    assert len(caplog.messages) == 2


async def test_nobody_wonders_about_an_answer_that_comes(caplog):
    assert await Patience("x").wait(_seven(), 30.0) == 7
    assert not caplog.messages


async def _seven():
    return 7


async def _answer(told):
    await told.wait()
    return 7


async def _fail(told):
    await told.wait()
    raise ValueError("gone")
