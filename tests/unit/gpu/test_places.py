"""Where GPUs are, by what the kernel tells."""

import sys
from types import ModuleType

import pytest

from tensorcast.gpu.places import normalize, read_place, read_places
from tensorcast.storage.nics import Place


def test_a_machine_without_gpus_has_no_places(tmp_path):
    assert read_places(tmp_path / "pci", tmp_path / "driver") == {}


def test_a_place_is_the_chain_of_bridges_and_the_numa_node(tmp_path):
    real = tmp_path / "pci0000:00" / "0000:00:01.0" / "0000:17:00.0"
    real.mkdir(parents=True)
    (real / "numa_node").write_text("1\n")
    devices, driver = tmp_path / "devices", tmp_path / "driver"
    devices.mkdir()
    (devices / "0000:17:00.0").symlink_to(real)
    (driver / "0000:17:00.0").mkdir(parents=True)
    place = Place(numa=1, pci=("pci0000:00", "0000:00:01.0"))
    assert read_places(devices, driver) == {"0000:17:00.0": place}
    assert read_place("0000:99:00.0", devices) == Place()


def test_addresses_of_nvml_are_those_of_sysfs():
    assert normalize(b"00000000:3B:00.0") == normalize("0000:3b:00.0") == "0000:3b:00.0"


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlShutdown"])
def test_nvml_that_fails_at_any_call_is_as_none(call: str, monkeypatch, tmp_path):
    """A driver whose device has fallen off the bus answers so; there is none here to ask."""

    class Failed(Exception):
        pass

    def fail() -> int:
        raise Failed

    nvml = ModuleType("pynvml")
    nvml.NVMLError = Failed
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlDeviceGetCount = lambda: 0
    setattr(nvml, call, fail)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (tmp_path / "0000:17:00.0").mkdir()
    assert list(read_places(tmp_path, tmp_path)) == ["0000:17:00.0"]
