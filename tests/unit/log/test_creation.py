from __future__ import annotations

import pytest

from tensorcast.log.creation import replicas
from tensorcast.schema.errors import InvalidArgument


def test_one_server_keeps_the_log_unless_more_are_asked_for(monkeypatch):
    monkeypatch.delenv("TENSORCAST_LOG_REPLICAS", raising=False)
    assert replicas() == 1
    monkeypatch.setenv("TENSORCAST_LOG_REPLICAS", "3")
    assert replicas() == 3


@pytest.mark.parametrize("text", ["", "0", "2", "many"])
def test_a_number_of_servers_that_can_never_agree_is_refused(text, monkeypatch):
    monkeypatch.setenv("TENSORCAST_LOG_REPLICAS", text)
    with pytest.raises(InvalidArgument, match="1, 3 or 5"):
        replicas()
