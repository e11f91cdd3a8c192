"""One attempt to bring up a cell of a fleet: looking who has it, restoring it, claiming it.

Data comes first: a cell is claimed only when its newest state lies on this disk, so whoever wins
serves at once. What is decided is decided in `ownership`; this is what carries it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from cellstore import ownership
from cellstore.alone import PENDING, Room
from cellstore.cell import Cell
from cellstore.clock import iso
from cellstore.copies import Copies
from cellstore.directory import DATABASE, HINT
from cellstore.epochlog import EpochLog, Lost, Won
from cellstore.epochs import EpochRecord, decode_hint
from cellstore.errors import CellBroken, DiskFull, Unavailable
from cellstore.index import RunIndex
from cellstore.objects import StoreFault
from cellstore.operations import CREATES, Operation
from cellstore.ownership import Claim, Copy, Found, Refuse, Restore, Reuse, Seen, Vanished, Wait
from cellstore.replicator import Replicator
from cellstore.restoring import Gone, Restorer
from cellstore.shipping import Shipper
from cellstore.tenure import Tenure, Terms, elsewhere

log = structlog.get_logger("cellstore.claims")

_LOOK_PAUSE = 0.25
# How long a bucket that does not answer is asked again: as long as requests wait for it.
_LOOK_SECS = 20.0

Result = tuple[Cell | None, Any]


@dataclass(frozen=True, slots=True)
class Means:
    """What claims are made with. `runs` are those that are known to exist."""

    copies: Copies
    replicator: Replicator
    restorer: Restorer
    shipper: Shipper
    terms: Terms
    runs: RunIndex
    draining: Callable[[], bool]
    slots: asyncio.Semaphore


class Claiming:
    """Brings up one cell for its first operation. `run` is called once."""

    def __init__(
        self,
        name: str,
        operation: Operation,
        room: Room,
        wanted: Callable[[], bool],
        epochs: EpochLog,
        means: Means,
    ) -> None:
        self._name = name
        self._operation = operation
        self._room = room
        self._wanted = wanted
        self._epochs = epochs
        self._means = means
        self._copies = means.copies
        self._terms = means.terms
        self._me = means.terms.me
        self._offload = means.copies.offload
        self._seen: Seen | None = None
        # The nonce of the record whose lease was waited for.
        self._waited: str | None = None
        # The local copy, while it may turn out to be the newest state.
        self._cell: Cell | None = None

    async def run(self) -> Result:
        """See Opener.bring_up. Raises OwnedElsewhere too."""
        # In the order of coming: where many come at once, a claim that is won is served before its
        # lease is old, instead of all of them at the end.
        async with self._means.slots:
            return await self._run()

    async def _run(self) -> Result:
        self._seen = await self._remembered() or self._guess()
        try:
            while True:
                seen = self._seen or await self._look()
                self._seen = seen
                if self._means.draining():
                    raise self._refusal(seen)
                result = await self._act(await self._decide(seen), seen)
                if result is not None:
                    return result
        except BaseException as error:
            if self._cell is not None and self._cell.tenure is None:
                await self._close_copy()
            if isinstance(error, CellBroken) and not str(error).startswith("cell `"):
                raise type(error)(f"cell `{self._name}` cannot be served: {error}") from None
            raise

    async def _decide(self, seen: Seen) -> Claim:
        """What is to be done; opens the local copy if it may be the newest state."""
        record, term = seen.record, self._copies.terms.get(self._name)
        if term is None:
            return ownership.claim(seen, None, self._me, self._waited)
        promising = record is None or (record.term == term and record.disk == self._me.disk)
        if promising and self._cell is None:
            try:
                self._cell = await self._open_copy()
            except CellBroken as fault:
                if not await self._offload(self._copies.is_cache, self._name):
                    raise
                log.error("damaged copy set aside", cell=self._name, why=fault.message)  # noqa: TRY400
                await self._offload(self._copies.retire, self._name, term, True)
                return ownership.claim(seen, None, self._me, self._waited)
        rev = 0 if self._cell is None else self._cell.revision
        claimed = await self._offload(self._hint().exists)
        decision = ownership.claim(seen, Copy(term, rev, claimed), self._me, self._waited)
        if not promising and not isinstance(decision, Vanished):
            await self._offload(self._copies.retire, self._name, term, None)
        if not isinstance(decision, Reuse | Found):
            await self._close_copy()
        return decision

    async def _act(self, decision: Claim, seen: Seen) -> Result | None:
        """Do what was decided. Returns None where there is to be decided anew."""
        match decision:
            case Reuse():
                return await self._reuse(seen)
            case Found():
                return await (self._found_here() if self._cell else self._found_anew())
            case Restore(wait):
                return await self._restore(seen, wait)
            case Wait(wait):
                await self._sleep(max(wait, _LOOK_PAUSE), seen)
                self._seen = None
                return None
            case Refuse(record):
                raise elsewhere(record, self._terms.clock.reading().wall)
            case Vanished():
                raise CellBroken(
                    f"cell `{self._name}`: its copy on this disk was in the bucket, and its "
                    "records there are gone or older; restore them, or move the copy away"
                )

    async def _sleep(self, secs: float, seen: Seen) -> None:
        """Wait for a lease to run out, without keeping others from their claims."""
        if seen.record is not None:
            self._waited = seen.record.nonce
        self._means.slots.release()
        try:
            await asyncio.sleep(secs)
        finally:
            await self._means.slots.acquire()

    # Looking

    def _hint(self) -> Path:
        return self._copies.path(self._name).with_name(HINT)

    async def _remembered(self) -> Seen | None:
        """The newest record as the local copy remembers it, if that may be claimed unseen."""
        term = self._copies.terms.get(self._name)
        if term is None:
            return None
        try:
            record = decode_hint(await self._offload(self._hint().read_bytes))
        except OSError:
            return None
        wanted = (self._name, term, self._me.disk, self._me.boot)
        if record is None or (record.cell, record.term, record.disk, record.boot) != wanted:
            return None
        return Seen(record.epoch, record)

    def _guess(self) -> Seen | None:
        """That there is no such run, where nobody has heard of it and a write would create it.

        If that is wrong, another's record is met, and there is nothing lost but a request.
        """
        if self._name in self._copies.terms or self._name in self._means.runs:
            return None
        return Seen(0, None) if self._operation.absent is CREATES else None

    async def _look(self) -> Seen:
        until = self._terms.clock.monotonic() + _LOOK_SECS
        while True:
            try:
                return await self._epochs.look()
            except StoreFault as fault:
                why = str(fault)
            if self._means.draining() or self._terms.clock.monotonic() > until:
                break
            await asyncio.sleep(_LOOK_PAUSE)
        raise Unavailable(f"cell `{self._name}`: the bucket does not tell who owns it: {why}")

    def _refusal(self, seen: Seen) -> Exception:
        record = seen.record
        if record is not None and not record.released and record.disk != self._me.disk:
            return elsewhere(record, self._terms.clock.reading().wall)
        return Unavailable("the node is stopping; send it again")

    # Claiming

    async def _reuse(self, seen: Seen) -> Result | None:
        """Claim the cell on the local copy, whose term goes on."""
        assert self._cell is not None
        outcome = await self._epochs.append(self._follow(seen, None), None)
        if isinstance(outcome, Lost):
            await self._start_over(outcome)
            return None
        return self._begin(self._cell, outcome), PENDING

    async def _found_here(self) -> Result | None:
        """Found a cell from the local copy, which never was in the bucket."""
        assert self._cell is not None
        term = self._copies.terms[self._name]
        first = await self._ship_first(self._copies.path(self._name), self._first(term))
        outcome = await self._epochs.append(first, None)
        if isinstance(outcome, Lost):
            await self._start_over(outcome)
            return None
        return self._begin(self._cell, outcome), PENDING

    async def _found_anew(self) -> Result | None:
        """Found a cell with its first write, which is in the bucket with the claim itself."""
        if self._operation.absent is not CREATES:
            return None, self._operation.absent
        if not self._wanted():
            raise Unavailable(f"cell `{self._name}`: nobody waits for it any more")
        staging, outcome = await self._offload(self._copies.build, self._name, self._operation)
        won = None
        try:
            first = await self._ship_first(staging / DATABASE, self._first(1))
            won = await self._epochs.append(first, None)
        finally:
            if not isinstance(won, Won):
                await self._offload(self._copies.directory.discard, staging)
        if isinstance(won, Lost):
            if not won.never:
                # It may have been the state for a while, and the write be in what came after.
                raise Unavailable(
                    f"cell `{self._name}`: another node has it now; what was sent may be done, "
                    "so look before sending it again"
                )
            await self._start_over(won)
            return None
        return await self._settle_in(staging, won), outcome

    async def _restore(self, seen: Seen, wait: float) -> Result | None:
        """Restore what was seen, and claim it once its lease has run out."""
        record = seen.record
        assert record is not None
        try:
            staging = await self._means.restorer.restore(record)
        except Gone as gone:
            newer = await self._look()
            if newer.record is not None and newer.record.nonce == record.nonce:
                raise CellBroken(
                    f"cell `{self._name}`: its newest record lists {gone}, which is not in the "
                    "bucket; restore that object"
                ) from None
            self._seen = newer
            return None
        except StoreFault as fault:
            raise Unavailable(f"cell `{self._name}` cannot be restored now: {fault}") from None
        won: Won | Lost | None = None
        try:
            while wait > 0 and self._same(record, seen):
                await self._sleep(max(_LOOK_PAUSE, wait), seen)
                seen = await self._look()
                decision = ownership.claim(seen, None, self._me)
                wait = decision.wait if isinstance(decision, Restore) else 0.0
            if self._same(record, seen) and ownership.claim(seen, None, self._me) == Restore():
                won = await self._epochs.append(self._follow(seen, seen.top + 1), None)
        finally:
            if not isinstance(won, Won):
                await self._offload(self._copies.directory.discard, staging)
        if won is None:
            self._seen = seen
            return None
        if isinstance(won, Lost):
            await self._start_over(won)
            return None
        return await self._settle_in(staging, won), PENDING

    def _same(self, record: EpochRecord, seen: Seen) -> bool:
        """Whether what was restored is still the newest."""
        return seen.record is not None and seen.record.nonce == record.nonce

    async def _start_over(self, lost: Lost) -> None:
        await self._close_copy()
        self._seen = lost.seen

    def _first(self, term: int) -> EpochRecord:
        """The first record of a cell, with nothing in it."""
        me, wall = self._me, self._terms.clock.reading().wall
        return EpochRecord(
            cell=self._name,
            epoch=1,
            owner=me.node,
            advertise=me.advertise,
            lease_expires_at=iso(wall + me.ttl),
            updated_at=iso(wall),
            ttl=me.ttl,
            term=term,
            nonce=self._terms.fresh(),
            disk=me.disk,
            boot=me.boot,
            rev=0,
            base=None,
            pieces=(),
        )

    def _follow(self, seen: Seen, term: int | None) -> EpochRecord:
        """The claim that follows what was seen; in a new term of its own, where one is given."""
        record = seen.record
        assert record is not None
        first = self._first(record.term if term is None else term)
        return replace(
            first, epoch=seen.top + 1, rev=record.rev, base=record.base, pieces=record.pieces
        )

    async def _ship_first(self, path: Path, first: EpochRecord) -> EpochRecord:
        try:
            return await self._means.shipper.found(self._name, path, first)
        except StoreFault as fault:
            raise Unavailable(
                f"cell `{self._name}`: the bucket does not take it: {fault}"
            ) from None

    # The local copy

    async def _open_copy(self) -> Cell:
        await self._room.take()
        try:
            return await self._copies.open(self._name)
        except BaseException:
            self._room.give()
            raise

    async def _close_copy(self) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            try:
                await cell.close()
            finally:
                self._room.give()

    async def _settle_in(self, staging: Path, won: Won) -> Cell:
        """Make a staged copy the cell's, now that it is claimed, and open it."""
        await self._offload(self._publish, staging, won.record)
        self._cell = await self._open_copy()
        return self._begin(self._cell, won)

    def _publish(self, staging: Path, record: EpochRecord) -> None:
        older = self._copies.terms.get(self._name)
        try:
            self._copies.publish(staging, self._name, record)
        except (DiskFull, OSError) as fault:
            raise Unavailable(
                f"cell `{self._name}`: there is no room for it here ({fault}); "
                "what was sent may be done"
            ) from None
        self._copies.terms[self._name] = record.term
        if older is not None:
            try:
                self._copies.retire(self._name, older, None)
            except OSError:
                # The next start finds it.
                log.exception("older copy not tidied away", cell=self._name, term=older)

    def _begin(self, cell: Cell, won: Won) -> Cell:
        followed = self._seen.record if self._seen is not None else None
        if followed is not None:
            self._epochs.supersede(followed, won.record)
        tenure = Tenure(cell, self._epochs, won, self._means.shipper, self._terms)
        cell.tenure = tenure
        self._means.replicator.add(tenure)
        self._terms.settled(tenure)
        self._means.runs.add(cell.name)
        log.info(
            "cell claimed",
            cell=cell.name,
            epoch=won.record.epoch,
            term=won.record.term,
            unpublished=cell.revision - won.record.rev,
        )
        return cell
