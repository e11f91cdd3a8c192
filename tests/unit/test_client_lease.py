"""Leases on a store in memory that loses requests and answers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from cellstore.client import (
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    OwnedElsewhere,
    StoreBroken,
    Unavailable,
)
from cellstore.client.core import Answer, Pause, Plan, Result, Silence, T
from cellstore.client.lease import Held, acquire, release, renew
from cellstore.conditions import parse_condition
from tests.unit.test_client_core import Player

SILENT = Silence("nothing came")
BUSY = Answer(503, {"retry-after": "0"})


class Store(Player):
    """One blob. Each write in turn meets one of `faults`: lost before it is done, or after."""

    def __init__(self, lease: bytes | None = None, faults: Sequence[str] = ()) -> None:
        super().__init__(deadline=10.0)
        self.lease = lease
        self.faults = list(faults)

    def perform(self, plan: Plan[T]) -> T:
        result: Result | None = None
        try:
            while True:
                effect = plan.send(result)
                result = None
                if isinstance(effect, Pause):
                    self.clock += effect.seconds
                else:
                    assert effect.call.target == "/runs/r/blobs/lease.json"
                    result = self.answer(effect.call.method, effect.call.headers, effect.call.body)
        except StopIteration as end:
            value: T = end.value
            return value

    def answer(self, method: str, headers: object, body: bytes | None) -> Result:
        assert isinstance(headers, dict)
        if method == "GET":
            return Answer(404) if self.lease is None else Answer(200, body=self.lease)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            return SILENT
        if fault == "fenced":
            return Answer(409, body=b'{"owner": "unknown"}')
        if fault.startswith("{"):
            # Somebody is quicker.
            self.lease = fault.encode()
        if fault == "removed":
            self.lease = None
        condition = parse_condition(
            *(
                value.encode() if value is not None else None
                for value in (headers.get("if-match"), headers.get("if-none-match"))
            )
        )
        assert condition is not None
        if not condition.holds(self.lease):
            return Answer(412)
        self.lease = body if method == "PUT" else None
        return BUSY if fault == "after" else Answer(200)


def lease(owner: str, expires_at: str = "2027-01-15T08:00:10.123456789Z") -> str:
    """Ten seconds after the start of the player's wall clock."""
    return json.dumps({"owner": owner, "expires_at": expires_at})


def take(store: Store, owner: str = "me", ttl: float = 30.0) -> Held:
    return store.perform(acquire(store.rules, "r", owner, ttl))


def owner(store: Store) -> str | None:
    return None if store.lease is None else json.loads(store.lease)["owner"]


def test_the_format_is_that_of_the_protocol() -> None:
    store = Store()
    held = take(store)
    text = '{\n  "owner": "me",\n  "expires_at": "2027-01-15T08:00:30.000000Z"\n}'
    assert store.lease == text.encode()
    assert held.expires_at == store.rules.wall() + 30


@pytest.mark.parametrize(
    "there",
    [
        None,
        lease("me"),
        lease("you", "2027-01-15T07:59:59Z"),
        lease("you", "2027-01-15T08:00:00"),
        lease("you", "2027-01-15T09:59:59+02:00"),
    ],
)
@pytest.mark.parametrize(
    "faults", [[], ["before"], ["after"], ["after", "after"], [lease("me")], ["removed"]]
)
def test_a_free_lease_is_taken(there: str | None, faults: list[str]) -> None:
    store = Store(there.encode() if there else None, faults)
    held = take(store)
    assert owner(store) == "me"
    store.perform(release(store.rules, "r", held))
    assert store.lease is None


@pytest.mark.parametrize("faults", [[], ["before", lease("you")]])
def test_a_held_lease_is_left(faults: list[str]) -> None:
    there = None if faults else lease("you").encode()
    store = Store(there, faults)
    with pytest.raises(LeaseHeld, match="`you` has it until 2027") as raised:
        take(store)
    assert (raised.value.owner, owner(store)) == ("you", "you")
    assert raised.value.expires_at == "2027-01-15T08:00:10.123456789Z"


def test_it_is_taken_over_when_it_is_over() -> None:
    store = Store(lease("you").encode())
    store.clock = 10.2
    take(store)
    assert owner(store) == "me"


@pytest.mark.parametrize("faults", [["before"] * 1000, ["fenced"]])
def test_no_lease_without_proof(faults: list[str]) -> None:
    store = Store(None, faults)
    with pytest.raises((OutcomeUnknown, OwnedElsewhere)):
        take(store)


@pytest.mark.parametrize(
    "there", [b"", b"null", b'{"owner":"x"}', b'{"owner":1,"expires_at":"2027-01-15"}', b"[" * 9999]
)
def test_what_is_no_lease(there: bytes) -> None:
    with pytest.raises(StoreBroken, match="is not a lease"):
        take(Store(there))


@pytest.mark.parametrize("faults", [[], ["before"], ["after"], ["before", "after"]])
def test_renewed(faults: list[str]) -> None:
    store = Store()
    held = take(store)
    store.clock += 20
    store.faults = faults
    renewed = store.perform(renew(store.rules, "r", "me", 30.0, held))
    assert renewed.expires_at == 1_800_000_050.0
    store.perform(release(store.rules, "r", renewed))
    assert store.lease is None


@pytest.mark.parametrize("fault", ["removed", lease("you"), "{}"])
@pytest.mark.parametrize("faults", [[], ["before"]])
def test_lost(fault: str, faults: list[str]) -> None:
    for end in (False, True):
        store = Store()
        held = take(store)
        store.faults = [*([] if end else faults), fault]
        plan: Plan[object] = release(store.rules, "r", held)
        if not end:
            plan = renew(store.rules, "r", "me", 30.0, held)
        with pytest.raises(LeaseLost, match=r"it was lost, .* now"):
            store.perform(plan)


def test_a_renewal_that_never_arrives_ends() -> None:
    store = Store()
    held = take(store)
    store.faults = ["before"] * 1000
    with pytest.raises(OutcomeUnknown):
        store.perform(renew(store.rules, "r", "me", 30.0, held))
    assert store.clock < 11


@pytest.mark.parametrize("faults", [["before"], ["after"], ["before", "after"], ["after", "{}"]])
def test_released_whatever_is_lost(faults: list[str]) -> None:
    store = Store()
    held = take(store)
    store.faults = faults
    store.perform(release(store.rules, "r", held))
    assert store.lease in (None, b"{}")


def test_a_release_that_never_arrives_ends() -> None:
    store = Store()
    held = take(store)
    store.faults = ["before"] * 1000
    with pytest.raises(OutcomeUnknown) as raised:
        store.perform(release(store.rules, "r", held))
    assert isinstance(raised.value.last, Unavailable)
