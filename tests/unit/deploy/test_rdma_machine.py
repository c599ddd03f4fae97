import os
import subprocess
import sys

from tensorcast.deploy.rdma_machine import read_rdma_machine, try_pyverbs
from tensorcast.schema.rdma import RdmaSettings


def test_the_environment_is_read():
    found = read_rdma_machine({"TENSORCAST_RDMA": "rxe1", "TENSORCAST_RDMA_GIDINDEX": "1"})
    assert found.settings == RdmaSettings(devices=("rxe1",))
    assert found.refusal is None
    assert "TENSORCAST_RDMA_GID_INDEX may be meant" in found.misspelt[0]
    refused = read_rdma_machine({"TENSORCAST_RDMA_MTU": "9000"})
    assert refused.refusal is not None
    assert "TENSORCAST_RDMA_MTU is '9000'." in refused.refusal


def test_pyverbs_is_tried_as_a_mover_does(monkeypatch, tmp_path):
    """A package of that name that cannot be loaded is no pyverbs."""
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs/__init__.py").write_text("")
    (tmp_path / "pyverbs/device.py").write_text("raise OSError('it is of another Python')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert try_pyverbs() == "it is of another Python"
    monkeypatch.delenv("PYTHONPATH")
    command = [sys.executable, "-c", "import tensorcast.movers.transports.rdma.verbs"]
    is_there = subprocess.run(command, capture_output=True, env=os.environ).returncode == 0
    assert bool(try_pyverbs()) is not is_there
