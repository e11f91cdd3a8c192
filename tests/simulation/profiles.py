"""What kinds of runs there are: how many nodes and clients, and which faults how often."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Profile:
    """The ranges that a run draws from. Times are in seconds, `actions` are weights."""

    name: str
    nodes: tuple[int, int] = (2, 3)
    cells: tuple[int, int] = (1, 2)
    clients: tuple[int, int] = (2, 4)
    secs: tuple[float, float] = (5.0, 12.0)
    think: tuple[float, ...] = (0.2, 0.6, 1.0)
    ttls: tuple[float, ...] = (3.0, 4.0, 8.0)
    syncs: tuple[float, ...] = (0.5, 1.0, 2.5)
    idles: tuple[float, ...] = (1.5, 6.0, 30.0)
    opens: tuple[int, ...] = (1, 2, 10)
    ack_bucket: float = 0.4
    # How probable it is that thresholds are small and payloads large.
    small: float = 0.6
    slow_disk: float = 0.4
    slow_bucket: float = 0.3
    no_date: float = 0.15
    # How probable a long quiet time with collections is at the end.
    quiet: float = 0.05
    count: tuple[int, int] = (2, 6)
    actions: dict[str, float] = field(
        default_factory=lambda: {
            "crash": 2.0,
            "fuse": 3.0,
            "files": 2.0,
            "pause": 3.0,
            "fuse_pause": 2.0,
            "write_pause": 1.5,
            "write_kill": 0.7,
            "record_cut": 1.0,
            "record_kill": 1.5,
            "partition": 1.0,
            "fuse_cut": 1.5,
            "errors": 3.0,
            "late": 3.0,
            "drain": 1.5,
            "move": 0.7,
            "snapshot": 1.0,
            "wall": 1.0,
            "full": 1.0,
        }
    )
    # What a process that ended finds when it is started again.
    returns: dict[str, float] = field(
        default_factory=lambda: {
            "same": 5.0,
            "reboot": 2.0,
            "lost": 1.0,
            "rolled back": 1.5,
        }
    )


MIXED = Profile("mixed")

PROFILES = {
    profile.name: profile
    for profile in (
        MIXED,
        replace(MIXED, name="calm", count=(0, 0), small=0.8),
        replace(
            MIXED,
            name="long",
            secs=(150.0, 260.0),
            think=(3.0, 6.0),
            count=(4, 9),
            small=1.0,
            quiet=0.7,
            idles=(6.0, 60.0, 300.0),
        ),
        replace(
            MIXED,
            name="restarts",
            nodes=(2, 2),
            actions={
                "crash": 2.0,
                "fuse": 4.0,
                "files": 4.0,
                "record_kill": 3.0,
                "write_kill": 2.0,
                "snapshot": 2.0,
                "errors": 1.0,
            },
        ),
        replace(
            MIXED,
            name="pauses",
            actions={"pause": 3.0, "fuse_pause": 5.0, "partition": 2.0, "wall": 1.0, "late": 1.0},
        ),
        replace(
            MIXED,
            name="network",
            actions={"partition": 3.0, "errors": 4.0, "late": 4.0},
            count=(3, 8),
        ),
        replace(
            MIXED,
            name="late",
            actions={"late": 6.0, "pause": 2.0, "crash": 1.0, "drain": 1.0},
            count=(3, 8),
            small=1.0,
        ),
        replace(
            MIXED,
            name="cut",
            nodes=(2, 2),
            ack_bucket=0.8,
            slow_bucket=0.8,
            actions={"fuse_cut": 2.0, "record_cut": 5.0, "late": 1.0, "fuse_pause": 1.0},
            think=(0.1, 0.3),
        ),
        replace(
            MIXED,
            name="commits",
            nodes=(2, 2),
            actions={"write_pause": 5.0, "write_kill": 2.0, "late": 1.0},
        ),
        replace(MIXED, name="moves", actions={"move": 4.0, "fuse": 1.0, "late": 1.0, "pause": 1.0}),
        replace(MIXED, name="stops", actions={"drain": 5.0, "errors": 1.0, "fuse": 1.0}),
    )
}
