"""Limits of control groups, as both versions of the kernel's interface tell them."""

from __future__ import annotations

from pathlib import Path

from tensorcast.movers.memory.limits import (
    Limit,
    available_bytes,
    parse_fields,
    read_limits,
    total_bytes,
)


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_the_second_version_and_all_groups_above(tmp_path: Path):
    write(tmp_path / "a" / "b", memory__max="max", memory__current=5)
    stat = "anon 60\nfile 40\nshmem 10"
    write(tmp_path / "a", memory__max=200, memory__current=100, memory__stat=stat)
    assert read_limits("0::/a/b\n", tmp_path) == (Limit(200, 70),)


def test_the_first_version(tmp_path: Path):
    stat = "cache 1\ntotal_cache 40\ntotal_shmem 30"
    files = {"memory__limit_in_bytes": 300, "memory__usage_in_bytes": 100, "memory__stat": stat}
    write(tmp_path / "memory" / "x", **files)
    groups = "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n"
    assert read_limits(groups, tmp_path) == (Limit(300, 90),)


def test_no_group_no_limit(tmp_path: Path):
    assert read_limits("0::/gone\n", tmp_path) == ()


def test_lines_that_hold_no_number_are_skipped():
    assert parse_fields("anon 12\nfile x\n\nalone\nshmem 3 kB") == {"anon": 12, "shmem": 3}


def test_this_machine_has_memory():
    assert 0 < available_bytes() <= total_bytes()
