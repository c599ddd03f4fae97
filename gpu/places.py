"""Where the GPUs of this machine are on its buses: for the choice of adapters near them. By NVML
(nvidia-ml-py) where it is installed, else by what the driver shows in /proc; neither takes a
device's memory."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Final

from tensorcast.storage.nics import Place, pci_chain

PCI: Final = Path("/sys/bus/pci/devices")
DRIVER: Final = Path("/proc/driver/nvidia/gpus")


def read_places(pci: Path = PCI, driver: Path = DRIVER) -> dict[str, Place]:
    """The places by PCI address; {} where there is no GPU, or none that answers."""
    addresses = sorted({*_by_nvml(), *_listed(driver)})
    return {address: read_place(address, pci) for address in addresses}


def read_place(address: str, pci: Path = PCI) -> Place:
    """What sysfs tells of a device."""
    device = pci / address
    try:
        numa = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        numa = -1
    return Place(numa=numa, pci=pci_chain(device.resolve()) if device.exists() else ())


def _by_nvml() -> list[str]:
    try:
        nvml = import_module("pynvml")
    except (ImportError, OSError):
        return []
    try:
        nvml.nvmlInit()
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
            return [normalize(nvml.nvmlDeviceGetPciInfo(handle).busId) for handle in handles]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:  # no driver, one of another version, or a device that has fallen off
        return []


def normalize(address: str | bytes) -> str:
    """A PCI address as sysfs writes it: NVML gives eight digits of a domain, in capitals."""
    text = address.decode() if isinstance(address, bytes) else address
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _listed(driver: Path) -> list[str]:
    try:
        return [normalize(name) for name in os.listdir(driver)]
    except OSError:
        return []
