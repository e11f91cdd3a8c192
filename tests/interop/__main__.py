"""Run the scenarios, or those that the arguments name."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.interop import adoption, fleet, scenarios
from tests.interop.scene import Scene
from tests.support import reference, versitygw

SCENARIOS = [*scenarios.SCENARIOS, *adoption.SCENARIOS, *fleet.SCENARIOS]

_TAIL = 15


def main(names: list[str]) -> int:
    known = {scenario.__name__: scenario for scenario in SCENARIOS}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no such scenario: {', '.join(unknown)}; there are: {', '.join(known)}")
        return 2
    for install, needed in (
        (reference.install, "Rust's cargo is needed to build the reference"),
        (versitygw.install, "Go is needed to build versitygw, the S3 server"),
    ):
        if install() is None:
            print(f"interop did NOT run: {needed}, and is missing")
            return 0 if os.environ.get("CELLSTORE_INTEROP_OPTIONAL") == "1" else 1
    passed = [_passes(known[name]) for name in names or known]
    print(f"{passed.count(True)} passed, {passed.count(False)} failed")
    return 0 if all(passed) else 1


def _passes(scenario: Callable[[Scene], str]) -> bool:
    name = scenario.__name__
    with TemporaryDirectory(prefix="cellstore-interop-") as place:
        scene = None
        try:
            began = time.monotonic()  # noqa: TID251
            with ExitStack() as stack:
                scene = Scene(Path(place), stack)
                seen = scenario(scene)
        except Exception:  # noqa: BLE001
            print(f"FAILED  {name}")
            traceback.print_exc(file=sys.stdout)
            for log in scene.logs() if scene else ():
                _print_tail(log)
            sys.stdout.flush()
            return False
    took = time.monotonic() - began  # noqa: TID251
    print(f"ok  {name}  {took:.1f} s  ({seen})", flush=True)
    return True


def _print_tail(log: Path) -> None:
    lines = log.read_text(errors="replace").splitlines()
    if lines:
        print(f"--- the end of {log.name}")
        print("\n".join(lines[-_TAIL:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
