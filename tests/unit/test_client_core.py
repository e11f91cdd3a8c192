"""What a client does next, by tables; no server and no time is needed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from cellstore.client import (
    BadRequest,
    DiskFull,
    NotFound,
    OutcomeUnknown,
    OwnedElsewhere,
    PreconditionFailed,
    StoreBroken,
    StoreError,
    TooLarge,
    Unauthorized,
    Unavailable,
    plans,
)
from cellstore.client.core import (
    Answer,
    Call,
    Pause,
    Plan,
    Refusal,
    Repeats,
    Result,
    Rules,
    Send,
    Silence,
    T,
    Unsent,
    exchange,
    judge,
)
from cellstore.client.targets import ANYWHERE, parse_patterns, parse_target

BASE = "http://one:9700"
OWNER = "http://two:9700"
OK = Answer(200, body=b"ok")
REFUSED = Unsent("refused")
SILENT = Silence("nothing came")
BUSY = Answer(503, {"retry-after": "1"}, b"the node is stopping")


class Player:
    """Performs plans with results given beforehand, on a clock that only pauses move."""

    def __init__(self, *, deadline: float = 60.0, allowed: Iterable[str] = ANYWHERE) -> None:
        self.clock = 0.0
        self.sent: list[Send] = []
        self.pauses: list[float] = []
        base = parse_target(BASE)
        assert base is not None
        self.rules = Rules(
            base=base,
            allowed=parse_patterns(allowed),
            timeout=30.0,
            deadline=deadline,
            now=lambda: self.clock,
            wall=lambda: 1_800_000_000.0 + self.clock,
            jitter=lambda: 0.5,
        )

    @property
    def servers(self) -> list[str]:
        return [send.server for send in self.sent]

    def play(self, plan: Plan[T], *results: Result) -> T:
        """Run the plan; every result must be asked for, and the last is given ever again."""
        left = list(results)
        effect = next(plan)
        try:
            while True:
                given: Result | None = None
                if isinstance(effect, Pause):
                    self.pauses.append(effect.seconds)
                    self.clock += effect.seconds
                else:
                    self.sent.append(effect)
                    given = left.pop(0) if len(left) > 1 else left[0]
                effect = plan.send(given)
        except StopIteration as end:
            assert len(left) == 1
            value: T = end.value
            return value


def fenced(**fields: object) -> Answer:
    told = {"error": "cell owned elsewhere", "owner": "node-b"} | fields
    return Answer(409, body=json.dumps(told).encode())


def call(repeats: Repeats, method: str = "PUT", target: str = "/runs/r/blobs/k") -> Call:
    return Call("write", method, target, b"x", {"if-match": '"1"'}, repeats)


READ = Call("read", "GET", "/runs/r/records")

DEFINITE: list[tuple[int, type[StoreError]]] = [
    (301, StoreBroken),
    (307, StoreBroken),
    (400, BadRequest),
    (401, Unauthorized),
    (403, Unauthorized),
    (404, NotFound),
    (405, BadRequest),
    (408, Unavailable),
    (412, PreconditionFailed),
    (413, TooLarge),
    (429, Unavailable),
    (431, BadRequest),
    (507, DiskFull),
]


@pytest.mark.parametrize("repeats", Repeats)
@pytest.mark.parametrize(("status", "kind"), DEFINITE)
def test_definite_answers_are_final(status: int, kind: type[StoreError], repeats: Repeats) -> None:
    refusal = judge(RULES, call(repeats), Answer(status, {"retry-after": "1"}, b"why so"), BASE)
    assert isinstance(refusal, Refusal)
    assert (type(refusal.error), refusal.again, refusal.maybe) == (kind, False, False)
    assert "why so" in str(refusal.error)


RULES = Player().rules

A, B, C = Repeats.ALWAYS, Repeats.ANSWERED, Repeats.UNSENT

# What came, for which kind of write, the error, whether to send again, whether it may be done.
DOUBTS: list[tuple[Result, Repeats, type[StoreError], bool, bool]] = [
    (REFUSED, A, Unavailable, True, False),
    (REFUSED, B, Unavailable, True, False),
    (REFUSED, C, Unavailable, True, False),
    (Unsent("bad certificate", lasting=True), A, Unavailable, False, False),
    (SILENT, A, Unavailable, True, True),
    (SILENT, B, Unavailable, False, True),
    (SILENT, C, Unavailable, False, True),
    (BUSY, A, Unavailable, True, True),
    (BUSY, B, Unavailable, True, True),
    (BUSY, C, Unavailable, False, True),
    (Answer(503), A, Unavailable, True, True),
    (Answer(503), B, Unavailable, False, True),
    (Answer(503), C, Unavailable, False, True),
    (Answer(502), A, Unavailable, True, True),
    (Answer(504, {"retry-after": "1"}), B, Unavailable, False, True),
    (Answer(500), A, StoreBroken, False, True),
    (Answer(501), C, StoreBroken, False, True),
]


@pytest.mark.parametrize(("result", "repeats", "kind", "again", "maybe"), DOUBTS)
def test_doubtful_writes(
    result: Result, repeats: Repeats, kind: type[StoreError], again: bool, maybe: bool
) -> None:
    refusal = judge(RULES, call(repeats), result, BASE)
    assert isinstance(refusal, Refusal)
    assert (type(refusal.error), refusal.again, refusal.maybe) == (kind, again, maybe)


@pytest.mark.parametrize("result", [REFUSED, SILENT, BUSY, Answer(503), Answer(502), Answer(504)])
def test_reads_go_on_after_anything_that_passes(result: Result) -> None:
    player = Player()
    assert player.play(exchange(player.rules, READ), result, result, OK) is OK
    assert player.servers == [BASE] * 3


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (SILENT, Unavailable),
        (REFUSED, Unavailable),
        (BUSY, Unavailable),
        (Answer(500), StoreBroken),
    ],
)
def test_a_read_leaves_nothing_unknown(result: Result, kind: type[StoreError]) -> None:
    player = Player(deadline=3.0)
    with pytest.raises(kind):
        player.play(exchange(player.rules, READ), result)
    assert player.clock < 3.0


@pytest.mark.parametrize(
    ("results", "repeats", "kind", "sent"),
    [
        # Never sent: nothing is in doubt, whatever the write.
        ([REFUSED], C, Unavailable, None),
        ([REFUSED, REFUSED, OK], C, None, 3),
        ([REFUSED, Answer(412)], C, PreconditionFailed, 2),
        ([REFUSED, SILENT], C, OutcomeUnknown, 2),
        # Perhaps done: not sent again, and said.
        ([SILENT], C, OutcomeUnknown, 1),
        ([SILENT], B, OutcomeUnknown, 1),
        ([BUSY], C, OutcomeUnknown, 1),
        ([Answer(503)], B, OutcomeUnknown, 1),
        ([Answer(500)], B, OutcomeUnknown, 1),
        # Asked to be sent again, and doubtful as soon as one of them is.
        ([BUSY, OK], B, None, 2),
        ([BUSY, SILENT], B, OutcomeUnknown, 2),
        ([BUSY, fenced()], B, OutcomeUnknown, 2),
        ([BUSY, REFUSED], B, OutcomeUnknown, None),
        ([SILENT, BUSY, REFUSED, Answer(502), OK], A, None, 5),
        ([SILENT, Answer(507)], A, OutcomeUnknown, 2),
        ([SILENT], A, OutcomeUnknown, None),
    ],
)
def test_writes(
    results: list[Result], repeats: Repeats, kind: type[StoreError] | None, sent: int | None
) -> None:
    player = Player(deadline=10.0)
    plan = exchange(player.rules, call(repeats))
    if kind is None:
        assert player.play(plan, *results).status == 200
    else:
        with pytest.raises(StoreError) as raised:
            player.play(plan, *results)
        assert type(raised.value) is kind
        if isinstance(raised.value, OutcomeUnknown):
            assert type(raised.value.last) is type(raised.value.__cause__)
            assert str(raised.value.last) in str(raised.value)
    assert player.clock < 10.0
    if sent is not None:
        assert len(player.sent) == sent
    else:
        assert player.clock > 6.0


def test_pauses_grow_and_heed_what_the_server_asks_for() -> None:
    player = Player()
    later = Answer(503, {"retry-after": "7"})
    player.play(exchange(player.rules, READ), *[REFUSED] * 7, later, OK)
    assert player.pauses[:3] == pytest.approx([0.075, 0.15, 0.3])
    assert player.pauses[6:] == pytest.approx([1.5, 8.5])


@pytest.mark.parametrize(
    ("header", "sent"), [("59", 2), ("61", 1), ("9" * 400, 1), ("Sun, 06 Nov 1994 08:49:37 GMT", 2)]
)
def test_no_pause_past_the_deadline(header: str, sent: int) -> None:
    player = Player()
    answers = [Answer(503, {"retry-after": header}), OK]
    plan = exchange(player.rules, READ)
    if sent == 2:
        assert player.play(plan, *answers) is OK
    else:
        with pytest.raises(Unavailable):
            player.play(plan, answers[0])
    assert len(player.sent) == sent


def test_each_attempt_ends_with_the_deadline() -> None:
    player = Player(deadline=40.0)
    player.play(exchange(player.rules, READ), Answer(503, {"retry-after": "30"}), OK)
    assert [send.timeout for send in player.sent] == pytest.approx([30.0, 9.925])
    assert {send.until for send in player.sent} == {40.0}


# Following


@pytest.mark.parametrize("repeats", Repeats)
def test_follows_with_the_same_request(repeats: Repeats) -> None:
    player = Player()
    wanted = call(repeats, "POST", "/runs/r/blobs/k?x=1")
    assert player.play(exchange(player.rules, wanted), fenced(owner_url=OWNER), OK) is OK
    assert player.servers == [BASE, OWNER]
    assert all(send.call is wanted for send in player.sent)


def test_the_second_answer_is_final() -> None:
    player = Player()
    with pytest.raises(OwnedElsewhere) as raised:
        player.play(
            exchange(player.rules, READ),
            fenced(owner_url=OWNER),
            fenced(owner="node-c", owner_url="http://three:9700"),
        )
    assert player.servers == [BASE, OWNER]
    assert (raised.value.owner, raised.value.owner_url) == ("node-c", "http://three:9700")


@pytest.mark.parametrize(
    "target",
    [
        "/runs/r/blobs/lease.json",
        "/runs/r/blobs/branches/lease.json",
        "/runs/r/blobs/a%2Flease.json",
        "/runs/r/blobs/lease%2Ejson",
        "/runs/r/blobs/lease.json?x=1",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_lease_is_never_followed(target: str, method: str) -> None:
    player = Player()
    with pytest.raises(OwnedElsewhere):
        player.play(exchange(player.rules, call(A, method, target)), fenced(owner_url=OWNER))
    assert player.servers == [BASE]


def test_what_only_looks_like_a_lease_is_followed() -> None:
    player = Player()
    wanted = call(A, "GET", "/runs/r/blobs/lease.json/x")
    player.play(exchange(player.rules, wanted), fenced(owner_url=OWNER), OK)
    assert player.servers == [BASE, OWNER]


@pytest.mark.parametrize(
    "answer",
    [
        fenced(),
        fenced(owner_url=7),
        fenced(owner_url=""),
        fenced(owner_url=BASE),
        fenced(owner_url=BASE + "/"),
        fenced(owner_url="HTTP://ONE:09700"),
        fenced(owner_url="ftp://two:9700"),
        fenced(owner_url="http://user:password@two:9700"),
        fenced(owner_url="http://two:9700?x=1"),
        fenced(owner_url="http://two:9700\r\nx: y"),
        Answer(409, body=b"conflict"),
        Answer(409, body=b'["owner_url"]'),
        Answer(409, body=b"[" * 100_000),
        Answer(409, body=b"\xff"),
    ],
)
def test_not_followed(answer: Answer) -> None:
    player = Player()
    with pytest.raises(OwnedElsewhere):
        player.play(exchange(player.rules, READ), answer)
    assert player.servers == [BASE]


@pytest.mark.parametrize(
    "allowed", [[], ["https://*:*"], ["http://two"], ["http://*.two:*", "http://tw:9700"]]
)
def test_nothing_is_sent_where_it_is_not_allowed(allowed: list[str]) -> None:
    player = Player(allowed=allowed)
    with pytest.raises(OwnedElsewhere, match="two:9700"):
        player.play(exchange(player.rules, READ), fenced(owner_url=OWNER))
    assert player.servers == [BASE]


def test_an_owner_that_is_gone_is_asked_for_again_at_the_base() -> None:
    player = Player()
    wanted = call(C)
    three = fenced(owner_url="http://three:9700")
    player.play(exchange(player.rules, wanted), fenced(owner_url=OWNER), REFUSED, three, OK)
    assert player.servers == [BASE, OWNER, BASE, "http://three:9700"]


def test_what_the_owner_leaves_unknown_is_unknown() -> None:
    player = Player()
    with pytest.raises(OutcomeUnknown, match="two:9700"):
        player.play(exchange(player.rules, call(B)), fenced(owner_url=OWNER), SILENT)


def test_no_hop_after_the_deadline() -> None:
    player = Player(deadline=5.0)
    plan = exchange(player.rules, call(C))
    assert isinstance(next(plan), Send)
    player.clock = 5.0
    with pytest.raises(OwnedElsewhere):
        plan.send(fenced(owner_url=OWNER))


def test_the_fields_of_a_fence() -> None:
    player = Player()
    answer = fenced(lease_expires_at="2026-11-30T14:00:30.123456Z")
    with pytest.raises(OwnedElsewhere) as raised:
        player.play(exchange(player.rules, READ), answer)
    error = raised.value
    assert (error.owner, error.owner_url) == ("node-b", None)
    assert error.lease_expires_at == "2026-11-30T14:00:30.123456Z"
    with pytest.raises(OwnedElsewhere) as raised:
        player.play(exchange(player.rules, READ), Answer(409, body=b"{}"))
    assert raised.value.owner == "unknown"


# Operations


def sent(plan: Plan[Any], *results: Result) -> Call:
    player = Player()
    player.play(plan, *(results or (OK,)))
    return player.sent[-1].call


@pytest.mark.parametrize(
    ("plan", "repeats"),
    [
        (lambda: plans.append(RULES, "r", {"seq": 1}, repeat=False), B),
        (lambda: plans.append(RULES, "r", {"seq": 1}, repeat=True), A),
        (lambda: plans.replace(RULES, "r", []), B),
        (lambda: plans.put_blob(RULES, "r", "k", b"", if_match=None, if_none_match=None), B),
        (lambda: plans.put_blob(RULES, "r", "k", b"", if_match="ab", if_none_match=None), C),
        (lambda: plans.put_blob(RULES, "r", "k", b"", if_match=None, if_none_match="*"), C),
        (lambda: plans.compare_and_swap(RULES, "r", "k", None, b""), C),
        (lambda: plans.compare_and_swap(RULES, "r", "k", "ab", b""), C),
        (lambda: plans.delete_blob(RULES, "r", "k", if_match=None), B),
        (lambda: plans.delete_blob(RULES, "r", "k", if_match="ab"), C),
        (lambda: plans.put_entry(RULES, "n", 1), B),
        (lambda: plans.request(RULES, "POST", "/runs/r/release", None, {}), C),
        (lambda: plans.request(RULES, "GET", "/readyz", None, {}), A),
    ],
)
def test_what_may_be_repeated(plan: Any, repeats: Repeats) -> None:
    assert sent(plan()).repeats is repeats


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a/b.json", "a/b.json"),
        ("..", "%2E%2E"),
        ("a/./../b", "a/%2E/%2E%2E/b"),
        ("...", "..."),
        ("/", "/"),
        ("a%2Fb", "a%252Fb"),
        ("ä ?#\r\n\0", "%C3%A4%20%3F%23%0D%0A%00"),
    ],
)
def test_keys_in_paths(key: str, path: str) -> None:
    assert sent(plans.get_blob(RULES, "r", key)).target == f"/runs/r/blobs/{path}"


@pytest.mark.parametrize(
    "plan",
    [
        lambda: plans.get_blob(RULES, "r", ""),
        lambda: plans.get_blob(RULES, "r", "\ud800"),
        lambda: plans.get_blob(RULES, "r", "ä" * 2049),
        lambda: plans.blobs(RULES, ".."),
        lambda: plans.blobs(RULES, ""),
        lambda: plans.blobs(RULES, "a/b"),
        lambda: plans.blobs(RULES, "ü"),
        lambda: plans.blobs(RULES, "\ud800"),
        lambda: plans.get_entry(RULES, "a b"),
        lambda: plans.append(RULES, "r", {"seq": 1, "x": float("nan")}, repeat=False),
        lambda: plans.append(RULES, "r", {"seq": 1, "x": "\ud800"}, repeat=False),
        lambda: plans.append(RULES, "r", "\ud800", repeat=False),
        lambda: plans.delete_blob(RULES, "r", "k", if_match='"ab"'),
        lambda: plans.request(RULES, "GET", "runs", None, {}),
        lambda: plans.request(RULES, "GET", "/a b", None, {}),
        lambda: plans.request(RULES, "GET", "/\r\nx: y", None, {}),
        lambda: plans.request(RULES, "GET", "/a/../b", None, {}),
        lambda: plans.request(RULES, "GET", "/a#b", None, {}),
        lambda: plans.request(RULES, "GET /", "/a", None, {}),
        lambda: plans.request(RULES, "GET", "/a", None, {"x:": "y"}),
        lambda: plans.request(RULES, "GET", "/a", None, {"x": "y\r\nz: 1"}),
    ],
)
def test_what_can_never_succeed_is_not_sent(plan: Any) -> None:
    with pytest.raises(BadRequest):
        next(plan())


def test_texts_are_sent_as_they_are() -> None:
    text = '{"seq": 1,  "x": 1.50}'
    assert sent(plans.append(RULES, "r", text, repeat=False)).body == text.encode()
    assert sent(plans.append(RULES, "r", text.encode(), repeat=False)).body == text.encode()
    assert sent(plans.append(RULES, "r", {"seq": 1, "x": "ä"}, repeat=False)).body == (
        '{"seq":1,"x":"ä"}'.encode()
    )
    body = sent(plans.replace(RULES, "r", [text, {"seq": 2}])).body
    assert body == f'[{text},{{"seq":2}}]'.encode()
    assert sent(plans.put_entry(RULES, "n", "text")).body == b'"text"'
    assert sent(plans.put_entry(RULES, "n", b'{"a": 1}')).body == b'{"a": 1}'


def test_no_journal_is_no_record_and_another_404_is_an_error() -> None:
    player = Player()
    assert player.play(plans.records(RULES, "r"), Answer(404, body=b"no journal")) == []
    assert player.play(plans.journal(RULES, "r"), Answer(404, body=b"no journal")) is None
    with pytest.raises(NotFound, match="no run store"):
        player.play(plans.records(RULES, "r"), Answer(404, body=b"<html>"))


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[" * 100_000, b"\xff"])
def test_answers_of_something_else(body: bytes) -> None:
    with pytest.raises(StoreBroken):
        Player().play(plans.runs(RULES), Answer(200, body=body))


def test_an_update_starts_over_where_another_was_quicker() -> None:
    player = Player()
    seen: list[bytes | None] = []

    def change(data: bytes | None) -> bytes:
        seen.append(data)
        return (data or b"") + b"x"

    results = [Answer(404), Answer(412), Answer(200, body=b"a"), OK]
    player.play(plans.update(player.rules, "r", "k", change), *results)
    assert seen == [None, b"a"]
    conditions = [dict(send.call.headers) for send in player.sent if send.call.method == "PUT"]
    assert conditions[0]["if-none-match"] == "*"
    assert conditions[1]["if-match"].startswith('"ca978112ca1bbdca')
    # What changes nothing is not written.
    player.play(plans.update(player.rules, "r", "k", lambda _: b"a"), Answer(200, body=b"a"))
    assert player.sent[-1].call.method == "GET"


def test_an_update_that_never_wins_ends() -> None:
    player = Player(deadline=1.0)
    plan = plans.update(player.rules, "r", "k", lambda data: (data or b"") + b"x")
    with pytest.raises(PreconditionFailed):
        player.play(plan, *[Answer(200, body=b"a"), Answer(412)] * 1000)


def test_an_update_of_unknown_outcome_is_not_repeated() -> None:
    player = Player()
    plan = plans.update(player.rules, "r", "k", lambda _: b"x")
    with pytest.raises(OutcomeUnknown):
        player.play(plan, Answer(404), BUSY)
    assert len(player.sent) == 2
