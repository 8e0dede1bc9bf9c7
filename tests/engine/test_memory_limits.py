from __future__ import annotations

from pathlib import Path

import psutil

from sysbench.engine.sensors.memory_limits import host_available_bytes, memory_limits

GIB = 2**30
PHYSICAL = 64 * GIB


def machine(root: Path, memberships: str, files: dict[str, str]) -> Path:
    contents = {"proc/self/cgroup": memberships, **files}
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_a_container_may_have_what_its_own_group_allows(tmp_path: Path) -> None:
    """Version 2 with a namespace of its own: the container sees its group as the root."""
    root = machine(
        tmp_path,
        "0::/\n",
        {
            "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{5 * GIB}\n",
            "sys/fs/cgroup/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\nshmem 4096\n",
        },
    )
    (limit,) = memory_limits(PHYSICAL, root)
    assert limit.limit_bytes == 8 * GIB
    assert limit.available_bytes() == 6 * GIB  # 3 are free, and 3 are file pages that can be taken back


def test_the_limits_of_the_groups_above_hold_too(tmp_path: Path) -> None:
    """A batch job: its step has no limit, the job has one, and the partition a tighter one."""
    slice_, job = "sys/fs/cgroup/part.slice", "sys/fs/cgroup/part.slice/job"
    root = machine(
        tmp_path,
        "0::/part.slice/job/step\n",
        {
            f"{job}/step/memory.max": "max\n",
            f"{job}/memory.max": f"{32 * GIB}\n",
            f"{slice_}/memory.max": f"{16 * GIB}\n",
        },
    )
    assert [limit.limit_bytes for limit in memory_limits(PHYSICAL, root)] == [32 * GIB, 16 * GIB]


def test_version_1_is_read_where_the_group_is_named_from_outside(tmp_path: Path) -> None:
    """Docker on version 1 without a namespace: the path is the host's, and the mount shows only the group."""
    memory = "sys/fs/cgroup/memory"
    root = machine(
        tmp_path,
        "5:cpu:/docker/abc\n4:memory:/docker/abc\n0::/\n",
        {
            f"{memory}/memory.limit_in_bytes": f"{4 * GIB}\n",
            f"{memory}/memory.usage_in_bytes": f"{3 * GIB}\n",
            f"{memory}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file 0\n",
        },
    )
    (limit,) = memory_limits(PHYSICAL, root)
    assert (limit.limit_bytes, limit.available_bytes()) == (4 * GIB, 2 * GIB)


def test_an_unlimited_group_is_no_limit(tmp_path: Path) -> None:
    memory = "sys/fs/cgroup/memory"
    version_1 = machine(
        tmp_path / "1",
        "4:memory:/docker/abc\n",
        {f"{memory}/memory.limit_in_bytes": "9223372036854771712\n"},
    )
    version_2 = machine(tmp_path / "2", "0::/\n", {"sys/fs/cgroup/memory.max": "max\n"})
    assert memory_limits(PHYSICAL, version_1) == memory_limits(PHYSICAL, version_2) == ()


def test_a_machine_without_cgroups_has_no_limits(tmp_path: Path) -> None:
    assert memory_limits(PHYSICAL, tmp_path) == ()


def test_a_limit_that_is_used_up_leaves_nothing_rather_than_less(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
    }
    (limit,) = memory_limits(PHYSICAL, machine(tmp_path, "0::/\n", files))
    assert limit.available_bytes() == 0


def test_a_group_that_disappears_leaves_its_availability_unknown(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", {"sys/fs/cgroup/memory.max": f"{GIB}\n"})
    (limit,) = memory_limits(PHYSICAL, root)
    assert limit.available_bytes() is None


def test_the_limits_of_this_very_machine_can_be_read() -> None:
    for limit in memory_limits(2**63):
        assert limit.limit_bytes > 0
        available_bytes = limit.available_bytes()
        assert available_bytes is None or 0 <= available_bytes <= limit.limit_bytes


def test_what_the_host_has_left_is_what_the_tightest_limit_leaves(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory.max": "65536\n",
        "sys/fs/cgroup/memory.current": "4096\n",
        "sys/fs/cgroup/memory.stat": "inactive_file 1024\nactive_file 0\n",
    }
    limits = memory_limits(PHYSICAL, machine(tmp_path, "0::/\n", files))
    assert host_available_bytes(limits) == 65536 - 4096 + 1024
    assert host_available_bytes(()) > 65536
    assert 0 < host_available_bytes() <= psutil.virtual_memory().total
