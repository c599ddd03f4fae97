"""Every tier keeps the contract."""

from conformance.tier import check_tier
from tensorcast.movers.tiers.disk import DiskTier


def test_disk_keeps_the_contract(tmp_path):
    check_tier(DiskTier(tmp_path / "disk"))
