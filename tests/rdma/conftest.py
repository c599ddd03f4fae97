"""These tests need the two Soft-RoCE devices of the guest (`scripts/test rdma`)."""

from pathlib import Path

if not Path("/sys/class/infiniband/rxe1").exists():
    collect_ignore_glob = ["test_*.py"]
