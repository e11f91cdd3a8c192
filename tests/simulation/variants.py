"""The program with one rule left out at a time. The simulation has to notice each.

A variant that is not caught means that the checks are blind there. `profile` is the kind of run
that shows it soonest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cellstore import epochlog, lineage, ownership, shipping
from cellstore.alone import PENDING
from cellstore.cell import Cell
from cellstore.claiming import Claiming
from cellstore.claims import Claims
from cellstore.copies import Copies
from cellstore.directory import DataDirectory
from cellstore.epochlog import EpochLog, Won
from cellstore.epochs import EpochRecord, decode, meta_key
from cellstore.errors import CellBroken, Unavailable
from cellstore.node import Node
from cellstore.objects import Outcome, StoreFault
from cellstore.ownership import Copy, Lease, Restore, Seen, Step, lease_from
from cellstore.restoring import Gone
from cellstore.tenure import Tenure
from tests.simulation import history
from tests.simulation.world import patched


@dataclass(frozen=True, slots=True)
class Variant:
    """What is broken, and in which runs that shows."""

    name: str
    profile: str
    patches: Callable[[], list[tuple[object, str, object]]]

    @contextmanager
    def broken(self) -> Iterator[None]:
        with ExitStack() as stack:
            # That such a thing is done at all is not to be held against it, but what comes of it.
            stack.enter_context(patched(history, "STRICT", False))
            for owner, name, value in self.patches():
                stack.enter_context(patched(owner, name, value))
            yield


Patches = list[tuple[object, str, object]]


def _renew_by_overwrite() -> Patches:
    append = Tenure._append

    async def broken(self: Tenure, record: EpochRecord, began: Any) -> None:
        if record.released or record.rev != self.record.rev:
            return await append(self, record, began)
        if any(piece.epoch == self.record.epoch for piece in record.pieces):
            # Its delta is remembered nowhere.
            return await append(self, record, began)
        again = replace(record, epoch=self.record.epoch)
        sent = self._clock.reading()
        await self._terms.store.put(meta_key(self.name, again.epoch), again.encode())
        self.record, self.touched = again, False
        self.lease = lease_from(sent, self._clock.reading(), None, again.ttl)
        self._terms.settled(self)
        self._tell()
        return None

    return [(Tenure, "_append", broken)]


def _no_check_after_commit() -> Patches:
    def broken(self: Tenure, done: Any) -> bool:
        return not self._terms.ack_bucket or self.record.rev >= done.revision

    return [(Tenure, "answers", broken)]


def _delete_before_the_pointer() -> Patches:
    append = Tenure._append

    async def broken(self: Tenure, record: EpochRecord, began: Any) -> None:
        await self._terms.store.delete(sorted(lineage.garbage(self.record, record)))
        await append(self, record, began)

    return [(Tenure, "_append", broken)]


def _trust_unknown() -> Patches:
    real = ownership.after_create

    def broken(outcome: Outcome, *rest: Any) -> Step:
        return real(Outcome.CREATED if outcome is Outcome.UNKNOWN else outcome, *rest)

    return [(epochlog, "after_create", broken)]


def _win_by_reading() -> Patches:
    append = EpochLog.append
    mine: dict[int, EpochRecord] = {}

    async def remember(self: EpochLog, record: EpochRecord, lease: Lease | None) -> Any:
        mine[id(self)] = record
        return await append(self, record, lease)

    def broken(self: EpochLog, data: bytes, epoch: int) -> str:
        try:
            found = decode(data, self.cell, epoch)
        except CellBroken:
            return ""
        record = mine[id(self)]
        return record.nonce if found.disk == record.disk else found.nonce

    return [(EpochLog, "append", remember), (EpochLog, "_nonce", broken)]


def _forget_what_is_dirty() -> Patches:
    return [(DataDirectory, "mark", lambda *_: None)]


def _claim_what_was_not_restored() -> Patches:
    async def broken(self: Claiming, seen: Seen, wait: float) -> Any:
        assert seen.record is not None
        try:
            staging = await self._means.restorer.restore(seen.record)
        except (Gone, StoreFault):
            self._seen = None
            return None
        while True:
            while ownership.claim(seen, None, self._me) != Restore():
                await asyncio.sleep(0.25)
                seen = await self._look()
            won = await self._epochs.append(self._follow(seen, seen.top + 1), None)
            if isinstance(won, Won):
                return await self._settle_in(staging, won), PENDING
            seen = won.seen

    return [(Claiming, "_restore", broken)]


def _no_list_after_a_claim() -> Patches:
    real = ownership.after_create

    def broken(outcome: Outcome, *rest: Any) -> Step:
        return Step.WON if outcome is Outcome.CREATED else real(outcome, *rest)

    return [(epochlog, "after_create", broken)]


async def _sync_unchecked(tenure: Tenure, before_release: Callable[[], None]) -> None:
    """As `Tenure.sync` of a release, which does not look whether more was written meanwhile."""
    began, before = tenure._clock.reading(), tenure.record
    shipment = await tenure._shipper.prepare(tenure.cell, before)
    async with tenure._turn:
        if tenure.over or tenure.record.rev != before.rev:
            return
        record = tenure._next(released=True)
        before_release()
        await tenure._append(record if shipment is None else shipment.extend(record), began)


def _is_over(tenure: Tenure) -> bool:
    return tenure.over


def _release_while_serving(*, stop_at_release: bool) -> Patches:
    """A stop that goes on serving a cell until its release is sent, or for a second more."""
    put_down = Claims.put_down
    nodes: dict[Tenure, Node] = {}

    def start_closing(self: Node, cell: Cell) -> Any:
        move = self._moves.get(cell.name)
        if move is None:
            assert cell.tenure is not None
            nodes[cell.tenure] = self
            move = self._move(cell.name, self._close(cell))
        return move

    def stop(tenure: Tenure) -> None:
        node = nodes.pop(tenure, None)
        if node is not None and node._open.get(tenure.name) is tenure.cell:
            del node._open[tenure.name]

    async def broken(self: Claims, cell: Cell) -> None:
        tenure = cell.tenure
        assert tenure is not None
        if not self.draining or _is_over(tenure):
            stop(tenure)
            await put_down(self, cell)
            return
        while not _is_over(tenure):
            try:
                await _sync_unchecked(tenure, lambda: stop(tenure) if stop_at_release else None)
            except StoreFault:
                await asyncio.sleep(0.25)
        if not stop_at_release:
            await asyncio.sleep(1.0)
            stop(tenure)
        await self._replicator.drop(tenure)
        await cell.quiet()
        await cell.close()
        await self._leave(tenure)

    return [(Claims, "put_down", broken), (Node, "_start_closing", start_closing)]


def _shrug(self: Tenure, done: Any) -> None:
    raise Unavailable("fenced or released meanwhile")


def _serve_after_the_release() -> Patches:
    def holds(self: Tenure) -> bool:
        return self.lost_to is None and self.lease.holds(self._clock.reading())

    return [
        *_release_while_serving(stop_at_release=False),
        (Tenure, "holds", holds),
        (Tenure, "_after_fence", _shrug),
    ]


def _release_before_quiet() -> Patches:
    return [*_release_while_serving(stop_at_release=True), (Tenure, "_after_fence", _shrug)]


def _use_a_copy_of_another_term() -> Patches:
    real = ownership.claim

    async def decide(self: Claiming, seen: Seen) -> Any:
        term = self._copies.terms.get(self._name)
        if term is None:
            return real(seen, None, self._me)
        if self._cell is None:
            self._cell = await self._open_copy()
        copy = Copy(term, self._cell.revision, True)
        if seen.record is not None:
            copy = replace(copy, term=seen.record.term)
            if real(seen, None, self._me) == Restore() and copy.rev >= seen.record.rev:
                return ownership.Reuse()
        decision = real(seen, copy, self._me)
        if not isinstance(decision, ownership.Reuse | ownership.Found):
            await self._close_copy()
        return decision

    return [(Claiming, "_decide", decide)]


def _claim_at_once_on_another_boot() -> Patches:
    real = ownership.claim

    def broken(seen: Seen, copy: Copy | None, me: ownership.Identity) -> Any:
        if seen.record is not None and seen.record.disk == me.disk:
            me = replace(me, boot=seen.record.boot)
        return real(seen, copy, me)

    return [(ownership, "claim", broken)]


def _prune_what_is_published() -> Patches:
    sync = Tenure.sync

    async def broken(self: Tenure, *, release: bool = False) -> None:
        await sync(self, release=release)
        if not self.over:
            await self._shipper.settled_base(self.cell, self.record.rev)

    return [(Tenure, "sync", broken)]


def _share_state_keys() -> Patches:
    def broken(cell: str, kind: str, end: int, fresh: str, sha256: str) -> str:
        return f"cells/{cell}/state/{end:020d}.{kind}"

    return [(shipping, "state_key", broken)]


def _discard_instead_of_orphaning() -> Patches:
    retire = Copies.retire

    def broken(self: Copies, name: str, term: int, dirty: bool | None) -> Any:
        return retire(self, name, term, False)

    return [(Copies, "retire", broken)]


def _reads_wait_for_nothing() -> Patches:
    answers = Tenure.answers

    def broken(self: Tenure, done: Any) -> bool:
        return answers(self, done) if done.changed else self.holds()

    return [(Tenure, "answers", broken)]


def _count_the_lease_from_the_answer() -> Patches:
    def broken(sent: Any, answered: Any, date: float | None, ttl: float) -> Lease:
        return lease_from(answered, answered, date, ttl * 1.5)

    return [(epochlog, "lease_from", broken)]


def _take_over_early() -> Patches:
    def broken(self: Seen) -> float:
        assert self.record is not None
        seen = self.age if self.age is not None else self.watched
        return self.record.ttl * 0.5 - seen

    return [(Seen, "left", broken)]


def _say_not_done_after_every_fence() -> Patches:
    def broken(revision: int, settled: int, sent: int) -> ownership.Verdict:
        return ownership.Verdict.ELSEWHERE

    from cellstore import tenure  # noqa: PLC0415 - the name is patched where it is used

    return [(tenure, "after_fence", broken)]


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("renew-by-overwrite", "pauses", _renew_by_overwrite),
        Variant("no-check-after-commit", "commits", _no_check_after_commit),
        Variant("delete-before-the-pointer", "network", _delete_before_the_pointer),
        Variant("trust-unknown", "network", _trust_unknown),
        Variant("win-by-reading", "restarts", _win_by_reading),
        Variant("forget-dirty", "restarts", _forget_what_is_dirty),
        Variant("claim-before-restore", "mixed", _claim_what_was_not_restored),
        Variant("no-list-after-claim", "mixed", _no_list_after_a_claim),
        Variant("serve-after-release", "stops", _serve_after_the_release),
        Variant("release-before-quiet", "stops", _release_before_quiet),
        Variant("copy-across-terms", "mixed", _use_a_copy_of_another_term),
        Variant("other-boot-at-once", "moves", _claim_at_once_on_another_boot),
        Variant("prune-early", "calm", _prune_what_is_published),
        Variant("shared-state-keys", "late", _share_state_keys),
        Variant("discard-orphans", "restarts", _discard_instead_of_orphaning),
        Variant("reads-do-not-wait", "network", _reads_wait_for_nothing),
        Variant("lease-from-the-answer", "pauses", _count_the_lease_from_the_answer),
        Variant("take-over-early", "mixed", _take_over_early),
        Variant("not-done-after-fence", "cut", _say_not_done_after_every_fence),
    )
}
