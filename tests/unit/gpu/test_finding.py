"""The devices of a machine: none is no error."""

import pytest

from tensorcast.gpu.finding import check_wish, find_gpus
from tensorcast.schema.errors import InvalidArgument


def test_a_machine_without_a_driver_says_so():
    assert find_gpus("off") == ((), "GPUs are switched off.")
    found = find_gpus("auto")
    assert bool(found.gpus) != bool(found.why_not)


def test_devices_of_ordinary_memory_can_be_asked_for():
    gpus = find_gpus("fake:2x8MiB+dmabuf").gpus
    assert [gpu.properties.pci for gpu in gpus] == ["0000:01:00.0", "0000:02:00.0"]
    assert all(gpu.properties.total_bytes == 8 << 20 for gpu in gpus)
    assert all(gpu.properties.has_dmabuf for gpu in gpus)


@pytest.mark.parametrize("text", ["auto", "off", "fake:1x64MiB"])
def test_wishes(text):
    assert check_wish(text) == text


@pytest.mark.parametrize("text", ["", "on", "fake", "fake:1x64GiB", "cuda:0"])
def test_what_cannot_be_wished_for(text):
    with pytest.raises(InvalidArgument, match="TENSORCAST_GPU"):
        check_wish(text)
