"""The run-store protocol, as any server of it must speak it. Runs on ours and on the reference."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable

import pytest

from tests.support.client import Answer, Client, record

PLAIN = "text/plain; charset=utf-8"


def is_ok(answer: Answer) -> bool:
    return (answer.status, answer.body, answer.headers["content-type"]) == (200, b"ok", PLAIN)


def listed(client: Client, run: str) -> bool:
    return run.removeprefix("/runs/") in client.get("/runs").json()


# Records


def test_append_and_read(client: Client, run: str) -> None:
    texts = [record(seq) for seq in (1, 2, 3)]
    assert all(is_ok(client.post(f"{run}/records", text)) for text in texts)
    answer = client.get(f"{run}/records")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == [json.loads(text) for text in texts]
    assert listed(client, run)


def test_records_of_an_unknown_run(client: Client, run: str) -> None:
    answer = client.get(f"{run}/records")
    assert (answer.status, answer.body) == (404, b"no journal")
    assert answer.headers["content-type"] == PLAIN
    assert not listed(client, run)


def test_appending_a_seq_again_replaces_it_in_place(client: Client, run: str) -> None:
    for seq in (5, 3, 9):
        client.post(f"{run}/records", record(seq))
    assert is_ok(client.post(f"{run}/records", record(3, result="again")))
    records = client.get(f"{run}/records").json()
    assert [r["seq"] for r in records] == [5, 3, 9]
    assert records[1]["result"] == "again"


def test_replace_the_journal(client: Client, run: str) -> None:
    for seq in (1, 2, 3):
        client.post(f"{run}/records", record(seq))
    body = f"[{record(7)},{record(2)}]"
    assert is_ok(client.put(f"{run}/records", body))
    assert [r["seq"] for r in client.get(f"{run}/records").json()] == [7, 2]
    client.post(f"{run}/records", record(1))
    assert [r["seq"] for r in client.get(f"{run}/records").json()] == [7, 2, 1]


def test_replace_with_nothing_empties_the_journal(client: Client, run: str) -> None:
    client.post(f"{run}/records", record(1))
    assert is_ok(client.put(f"{run}/records", "[]"))
    assert client.get(f"{run}/records").status == 404
    client.post(f"{run}/records", record(4))
    assert [r["seq"] for r in client.get(f"{run}/records").json()] == [4]


def test_a_journal_with_a_repeated_seq_changes_nothing(client: Client, run: str) -> None:
    client.post(f"{run}/records", record(1))
    before = client.get(f"{run}/records").body
    answer = client.put(f"{run}/records", f"[{record(2)},{record(3)},{record(2)}]")
    assert answer.status == 400
    assert client.get(f"{run}/records").body == before


def test_records_keep_the_text_that_was_sent(client: Client, run: str) -> None:
    text = '{"z":1.10,"seq":1,"a":1e2,"big":12345678901234567890,"s":"\\u00e9\\u2028"}'
    client.post(f"{run}/records", text)
    assert client.get(f"{run}/records").body == f"[{text}]".encode()


def test_of_a_repeated_seq_in_one_record_the_last_counts(client: Client, run: str) -> None:
    assert is_ok(client.post(f"{run}/records", '{"seq":1,"a":2,"seq":7}'))
    assert client.get(f"{run}/records").json() == [{"seq": 7, "a": 2}]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"seq":0}', id="zero"),
        pytest.param('{"seq":9223372036854775807}', id="largest"),
        pytest.param(' \n{"seq":1}\t ', id="white-space"),
        pytest.param('{"seq":1,"a":"\\ud83d\\ude00\\u0000"}', id="surrogate-pair"),
        pytest.param('{"seq":1,"a":' + "[" * 100 + "]" * 100 + "}", id="deep"),
        pytest.param('{"seq":1,"a":1e308,"b":-0,"c":1e-400}', id="numbers"),
        pytest.param('{"seq":1,"' + "k" * 300000 + '":[1]}', id="long-key"),
    ],
)
def test_odd_records_that_are_fine(client: Client, run: str, text: str) -> None:
    assert is_ok(client.post(f"{run}/records", text))
    assert client.get(f"{run}/records").json() == [json.loads(text)]


BAD_RECORDS = [
    pytest.param(b'{"seq":1.0}', id="float-seq"),
    pytest.param(b'{"seq":1e0}', id="exponent-seq"),
    pytest.param(b'{"seq":-1}', id="negative-seq"),
    pytest.param(b'{"seq":-0}', id="minus-zero-seq"),
    pytest.param(b'{"seq":"1"}', id="string-seq"),
    pytest.param(b'{"seq":true}', id="boolean-seq"),
    pytest.param(b'{"seq":null}', id="null-seq"),
    pytest.param(b'{"seq":9223372036854775808}', id="too-large-seq"),
    pytest.param(b'{"seq":18446744073709551616}', id="far-too-large-seq"),
    pytest.param(b"{}", id="no-seq"),
    pytest.param(b'{"Seq":1}', id="other-case"),
    pytest.param(b"[1]", id="array"),
    pytest.param(b"7", id="number"),
    pytest.param(b'"seq"', id="string"),
    pytest.param(b"null", id="null"),
    pytest.param(b"", id="empty"),
    pytest.param(b"   ", id="blank"),
    pytest.param(b'{"seq":1', id="broken"),
    pytest.param(b'{"seq":1}{"seq":2}', id="two"),
    pytest.param(b'{"seq":1,}', id="trailing-comma"),
    pytest.param(b"{'seq':1}", id="single-quotes"),
    pytest.param(b'{"seq":1,"a":"\xff"}', id="bad-utf8"),
    pytest.param(b'\xef\xbb\xbf{"seq":1}', id="byte-order-mark"),
    pytest.param(b'{"seq":1,"a":NaN}', id="nan"),
    pytest.param(b'{"seq":1,"a":Infinity}', id="infinity"),
    pytest.param(b'{"seq":1,"a":1e400}', id="beyond-double"),
    pytest.param(b'{"seq":1,"a":' + b"1" * 400 + b"}", id="long-integer"),
    pytest.param(b'{"seq":1,"a":"\\ud800"}', id="lone-surrogate"),
    pytest.param(b'{"seq":1,"\\udfff":1}', id="lone-surrogate-key"),
    pytest.param(b'{"seq":1,"a":01}', id="leading-zero"),
    pytest.param(b'{"seq":1,"a":"\n"}', id="control-character"),
    pytest.param(b'{"seq":1,"a":' + b"[" * 128 + b"]" * 128 + b"}", id="depth-129"),
    pytest.param(b'{"seq":1,"a":' + b"[" * 126 + b"]" * 126 + b"}", id="depth-127"),
    pytest.param(b'{"seq":1,"a":' + b"[" * 5000 + b"]" * 5000 + b"}", id="depth-5001"),
    pytest.param(b'{"seq":1,"b":"' + b"x" * 300000 + b'","a":1e400}', id="long-beyond-double"),
    pytest.param(b'{"seq":1,"b":"' + b"x" * 300000 + b'","a":"\\udc00"}', id="long-surrogate"),
    pytest.param(b'{"a":1e400,"b":"' + b"x" * 300000 + b'","a":1,"seq":1}', id="long-repeated"),
    pytest.param(b'{"seq":1,"b":[["' + b"x" * 300000 + b'"],["\xff"]]}', id="long-bad-utf8"),
]


@pytest.mark.parametrize("body", BAD_RECORDS)
def test_bad_records_are_refused(client: Client, run: str, body: bytes) -> None:
    answer = client.post(f"{run}/records", body)
    assert answer.status == 400
    assert answer.headers["content-type"] == PLAIN
    assert answer.text.startswith("invalid record: ")
    assert not listed(client, run)


@pytest.mark.parametrize("body", BAD_RECORDS)
def test_journals_with_a_bad_record_are_refused(client: Client, run: str, body: bytes) -> None:
    client.post(f"{run}/records", record(1))
    before = client.get(f"{run}/records").body
    answer = client.put(f"{run}/records", b"[" + record(2).encode() + b"," + body + b"]")
    assert answer.status == 400
    assert answer.text.startswith("invalid journal")
    assert client.get(f"{run}/records").body == before


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"7", b"[", b"[{}]", b"null", b'[{"seq":1}]]', b"[,]"]
)
def test_bad_journals_are_refused(client: Client, run: str, body: bytes) -> None:
    answer = client.put(f"{run}/records", body)
    assert answer.status == 400
    assert answer.text.startswith("invalid journal")
    assert not listed(client, run)


def test_the_deepest_record_is_readable_in_its_journal(client: Client, run: str) -> None:
    # serde_json reads 127 containers, and the array around the records is one of them.
    body = '[{"seq":1,"a":' + "[" * 125 + "]" * 125 + "}]"
    assert is_ok(client.put(f"{run}/records", body))
    assert client.get(f"{run}/records").json() == json.loads(body)


# Blobs


def test_put_get_list_delete(client: Client, run: str) -> None:
    assert is_ok(client.put(f"{run}/blobs/b/two", b"\x00\xff"))
    assert is_ok(client.put(f"{run}/blobs/a.json", b"{}"))
    answer = client.get(f"{run}/blobs/b/two")
    assert (answer.status, answer.body) == (200, b"\x00\xff")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert client.get(f"{run}/blobs").json() == ["a.json", "b/two"]
    assert is_ok(client.delete(f"{run}/blobs/b/two"))
    assert is_ok(client.delete(f"{run}/blobs/b/two"))
    answer = client.get(f"{run}/blobs/b/two")
    assert (answer.status, answer.body) == (404, b"not found")
    assert client.get(f"{run}/blobs").json() == ["a.json"]


def test_blobs_of_an_unknown_run(client: Client, run: str) -> None:
    answer = client.get(f"{run}/blobs")
    assert (answer.status, answer.body) == (200, b"[]")
    assert client.get(f"{run}/blobs/x").status == 404
    assert is_ok(client.delete(f"{run}/blobs/x"))
    assert not listed(client, run)


def test_an_empty_blob(client: Client, run: str) -> None:
    assert is_ok(client.put(f"{run}/blobs/empty", b""))
    answer = client.get(f"{run}/blobs/empty")
    assert (answer.status, answer.body) == (200, b"")


def test_a_blob_has_the_digest_of_its_bytes_as_entity_tag(client: Client, run: str) -> None:
    client.put(f"{run}/blobs/a", b"bytes")
    answer = client.get(f"{run}/blobs/a")
    assert answer.headers["etag"] == f'"{hashlib.sha256(b"bytes").hexdigest()}"'


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ("a%2Fb", "a/b"),
        ("a/b", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("..", ".."),
        ("../..", "../.."),
        ("a//b/", "a//b/"),
        ("%00", "\0"),
        ("%20", " "),
        ("+", "+"),
        ("na%C3%AFve%F0%9F%98%80", "naïve😀"),
        ("a?x=1", "a"),
        ("%", "%"),
        ("%zz", "%zz"),
        ("k" * 4096, "k" * 4096),
        ("%6B" * 4096, "k" * 4096),
    ],
)
def test_blob_keys(client: Client, run: str, raw: str, key: str) -> None:
    assert is_ok(client.put(f"{run}/blobs/{raw}", key.encode()))
    assert client.get(f"{run}/blobs").json() == [key]
    assert client.get(f"{run}/blobs/{raw}").body == key.encode()


def test_keys_are_sorted_by_their_bytes(client: Client, run: str) -> None:
    for key in ("b", "a%2Fb", "a.b", "%F0%9F%98%80", "%EF%BF%BD", "A"):
        client.put(f"{run}/blobs/{key}", b"")
    assert client.get(f"{run}/blobs").json() == ["A", "a.b", "a/b", "b", "\ufffd", "😀"]


def test_an_empty_key_is_no_path(client: Client, run: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert client.request(method, f"{run}/blobs/").status == 404
    assert not listed(client, run)


@pytest.mark.parametrize("raw", ["%FF", "a%C3", "%ED%A0%80"])
def test_keys_that_are_not_utf8(client: Client, run: str, raw: str) -> None:
    assert client.put(f"{run}/blobs/{raw}", b"x").status == 400
    assert not listed(client, run)


def test_too_long_a_key(client: Client, run: str) -> None:
    answer = client.put(f"{run}/blobs/{'k' * 4097}", b"x")
    assert answer.status == 400
    assert "4097" in answer.text
    assert not listed(client, run)


# Conditional writes


def tag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()}"'


def lost(answer: Answer) -> bool:
    return (answer.status, answer.body) == (412, b"precondition failed")


def test_create_only(client: Client, run: str) -> None:
    assert is_ok(client.put(f"{run}/blobs/lease.json", b"one", if_none_match="*"))
    assert lost(client.put(f"{run}/blobs/lease.json", b"two", if_none_match="*"))
    assert client.get(f"{run}/blobs/lease.json").body == b"one"


def test_swap(client: Client, run: str) -> None:
    client.put(f"{run}/blobs/a", b"one")
    assert lost(client.put(f"{run}/blobs/a", b"three", if_match=tag(b"two")))
    assert is_ok(client.put(f"{run}/blobs/a", b"two", if_match=tag(b"one")))
    assert lost(client.put(f"{run}/blobs/a", b"three", if_match=tag(b"one")))
    assert client.get(f"{run}/blobs/a").body == b"two"


def test_conditional_delete(client: Client, run: str) -> None:
    client.put(f"{run}/blobs/a", b"one")
    assert lost(client.delete(f"{run}/blobs/a", if_match=tag(b"two")))
    assert lost(client.delete(f"{run}/blobs/a", if_none_match="*"))
    assert is_ok(client.delete(f"{run}/blobs/a", if_match=tag(b"one")))
    assert lost(client.delete(f"{run}/blobs/a", if_match=tag(b"one")))
    assert is_ok(client.delete(f"{run}/blobs/a", if_none_match="*"))


def test_absence_wins_when_both_are_sent(client: Client, run: str) -> None:
    path = f"{run}/blobs/a"
    assert is_ok(client.put(path, b"one", if_none_match="*", if_match=tag(b"zero")))
    assert lost(client.put(path, b"two", if_none_match="*", if_match=tag(b"one")))


def test_conditional_delete_on_a_run_that_exists_nowhere(client: Client, run: str) -> None:
    assert lost(client.delete(f"{run}/blobs/a", if_match=tag(b"x")))
    assert is_ok(client.delete(f"{run}/blobs/a", if_none_match="*"))
    assert not listed(client, run)


def test_a_lost_swap_does_not_create_a_run(client: Client, run: str) -> None:
    assert lost(client.put(f"{run}/blobs/a", b"x", if_match=tag(b"y")))
    assert not listed(client, run)


def test_any_tag_matches_what_exists(client: Client, run: str) -> None:
    assert lost(client.put(f"{run}/blobs/a", b"x", if_match="*"))
    client.put(f"{run}/blobs/a", b"x")
    assert is_ok(client.put(f"{run}/blobs/a", b"y", if_match="*"))


def test_lists_of_tags(client: Client, run: str) -> None:
    client.put(f"{run}/blobs/a", b"one")
    assert lost(client.put(f"{run}/blobs/a", b"two", if_match=f"{tag(b'x')}, {tag(b'y')}"))
    assert is_ok(client.put(f"{run}/blobs/a", b"two", if_match=f"{tag(b'x')}, {tag(b'one')}"))
    assert lost(client.put(f"{run}/blobs/a", b"three", if_none_match=f"{tag(b'two')}"))
    assert is_ok(client.put(f"{run}/blobs/a", b"three", if_none_match=f"{tag(b'x')}"))


def test_odd_tags_match_nothing(client: Client, run: str) -> None:
    client.put(f"{run}/blobs/a", b"one")
    for odd in (tag(b"one").strip('"'), f"W/{tag(b'one')}", tag(b"one").upper(), "", '""'):
        assert lost(client.put(f"{run}/blobs/a", b"two", if_match=odd))


# The registry


def test_registry_entries(client: Client, fresh: Callable[[str], str]) -> None:
    first, second = fresh("a"), fresh("b")
    assert is_ok(client.put(f"/registry/{second}", f'{{"name":"{second}", "n":1.50}}'))
    assert is_ok(client.put(f"/registry/{first}", f'{{"name":"{first}"}}'))
    answer = client.get(f"/registry/{second}")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {"name": second, "n": 1.5}
    names = [entry["name"] for entry in client.get("/registry").json()]
    assert names == sorted(names)
    assert {first, second} <= set(names)
    assert is_ok(client.put(f"/registry/{first}", f'{{"name":"{first}","v":2}}'))
    assert client.get(f"/registry/{first}").json()["v"] == 2


def test_an_unknown_entry(client: Client, fresh: Callable[[str], str]) -> None:
    answer = client.get(f"/registry/{fresh('x')}")
    assert (answer.status, answer.body) == (404, b"not found")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"NaN", b'"\\ud800"', b"1 2"])
def test_bad_entries_are_refused(client: Client, fresh: Callable[[str], str], body: bytes) -> None:
    name = fresh("bad")
    answer = client.put(f"/registry/{name}", body)
    assert answer.status == 400
    assert client.get(f"/registry/{name}").status == 404
    assert client.get("/registry").status == 200


# Ids, paths and methods


@pytest.mark.parametrize("name", ["a", "A.b_c@d-9", "...", "x" * 200, "%41", "-"])
def test_good_ids(client: Client, name: str) -> None:
    assert is_ok(client.post(f"/runs/{name}/records", record(1)))
    assert name.replace("%41", "A") in client.get("/runs").json()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a%2Fb", "a%20b", "%C3%A9", "x" * 201, "a+b", "a:b", "%00", "%FF", "~"]
)
def test_bad_ids(client: Client, name: str) -> None:
    before = client.get("/runs").json()
    for method, path, body in [
        ("GET", f"/runs/{name}/records", None),
        ("POST", f"/runs/{name}/records", record(1)),
        ("PUT", f"/runs/{name}/records", "[]"),
        ("GET", f"/runs/{name}/blobs", None),
        ("PUT", f"/runs/{name}/blobs/a", "x"),
        ("DELETE", f"/runs/{name}/blobs/a", None),
    ]:
        answer = client.request(method, path, body)
        assert (answer.status, method) == (400, method)
        assert "invalid" in answer.text.lower()
    assert client.get("/runs").json() == before


@pytest.mark.parametrize("name", ["", "..", "a%2Fb", "x" * 201])
def test_bad_registry_names(client: Client, name: str) -> None:
    assert client.get(f"/registry/{name}").status == 400
    assert client.put(f"/registry/{name}", "{}").status == 400


def test_a_bad_id_is_named(client: Client) -> None:
    assert "`a b`" in client.get("/runs/a%20b/records").text


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nothing",
        "/status/",
        "/runs/",
        "/runs/x",
        "/runs/x/",
        "/runs/x/records/",
        "/runs/x/records/1",
        "/runs/x/blobs/",
        "/runs/x/else",
        "/registry/a/b",
        "/RUNS",
        "/%72uns",
        "/journal/runs",
    ],
)
def test_unknown_paths(client: Client, path: str) -> None:
    for method in ("GET", "PUT", "POST", "DELETE"):
        answer = client.request(method, path)
        assert answer.status == 404
        assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/status", {"GET", "HEAD"}),
        ("/runs", {"GET", "HEAD"}),
        ("/runs/methods/records", {"GET", "HEAD", "POST", "PUT"}),
        ("/runs/methods/blobs", {"GET", "HEAD"}),
        ("/runs/methods/blobs/a", {"GET", "HEAD", "PUT", "DELETE"}),
        ("/registry", {"GET", "HEAD"}),
        ("/registry/a", {"GET", "HEAD", "PUT"}),
    ],
)
def test_methods(client: Client, path: str, allowed: set[str]) -> None:
    for method in {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} - allowed:
        answer = client.request(method, path, "{}")
        assert answer.status == 405
        assert {name.strip() for name in answer.headers["allow"].split(",")} == allowed
    assert not listed(client, "/runs/methods")


def test_head_answers_like_get_without_a_body(client: Client, run: str) -> None:
    client.post(f"{run}/records", record(1))
    client.put(f"{run}/blobs/a", b"bytes")
    client.put("/registry/headed", "{}")
    for path in (
        "/runs",
        f"{run}/records",
        f"{run}/blobs",
        f"{run}/blobs/a",
        f"{run}/blobs/none",
        "/registry",
        "/registry/headed",
    ):
        head = client.request("HEAD", path)
        get = client.get(path)
        assert (head.status, head.body) == (get.status, b"")
        assert head.headers["content-length"] == str(len(get.body))
        assert head.headers["content-type"] == get.headers["content-type"]


def test_runs_are_sorted_and_listed_once(client: Client, fresh: Callable[[str], str]) -> None:
    names = [fresh(base) for base in ("zz", "aa", "ZZ")]
    for name in [*names, *names]:
        client.put(f"/runs/{name}/blobs/a", b"x")
    answer = client.get("/runs")
    assert answer.headers["content-type"] == "application/json"
    runs = answer.json()
    assert runs == sorted(set(runs))
    assert set(names) <= set(runs)


def test_status(client: Client, run: str) -> None:
    client.put(f"{run}/blobs/a", b"x")
    assert client.get(f"{run}/blobs/a").status == 200
    status = client.get("/status").json()
    assert isinstance(status["node"], str)
    assert status["bucket"] is False
    (cell,) = [c for c in status["cells"] if c["cell"] == run.removeprefix("/runs/")]
    assert cell["epoch"] == 1
    assert {"lease_expires_at", "replicated"} <= set(cell)


# Tokens


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer {token}x",
        "Bearer  {token}",
        "bearer {token}",
        "Basic {token}",
        "{token}",
    ],
)
def test_no_entry_without_the_token(server: tuple[str, str], authorization: str | None) -> None:
    url, token = server
    headers = {}
    if authorization is not None:
        headers["Authorization"] = authorization.format(token=token)
    client = Client(url)
    for method, path, body in [
        ("GET", "/status", None),
        ("GET", "/nothing", None),
        ("POST", "/runs/unauthorized/records", record(1)),
        ("PATCH", "/runs", None),
        ("PUT", "/runs/a%20b/blobs/%FF", b"x"),
    ]:
        answer = client.request(method, path, body, headers)
        assert (answer.status, answer.body) == (401, b"unauthorized")
    client.close()
    entitled = Client(url, token)
    assert "unauthorized" not in entitled.get("/runs").json()
    entitled.close()


# Sizes and codings


def test_a_20_mib_blob(client: Client, run: str) -> None:
    data = bytes(range(256)) * (20 * 4096)
    assert is_ok(client.put(f"{run}/blobs/large", data))
    assert client.get(f"{run}/blobs/large").body == data


def test_a_journal_of_20_000_records(client: Client, run: str) -> None:
    body = "[" + ",".join(record(seq) for seq in range(20000, 0, -1)) + "]"
    assert is_ok(client.put(f"{run}/records", body))
    assert client.get(f"{run}/records").json() == json.loads(body)
    client.post(f"{run}/records", record(50000))
    assert [r["seq"] for r in client.get(f"{run}/records").json()[-2:]] == [1, 50000]


def test_a_body_in_chunks(client: Client, run: str) -> None:
    text = record(1).encode()
    parts = [text[:10], text[10:]]
    assert is_ok(client.request("POST", f"{run}/records", parts))
    assert client.get(f"{run}/records").json() == [json.loads(text)]


def test_long_answers_are_compressed_for_those_who_accept_it(client: Client, run: str) -> None:
    data = b"state " * 10000
    client.put(f"{run}/blobs/long", data)
    client.put(f"{run}/blobs/short", b"short")
    answer = client.get(f"{run}/blobs/long", accept_encoding="deflate, gzip;q=0.5")
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.body) == data
    assert len(answer.body) < len(data) / 10
    for accepted in ("identity", "gzip;q=0", "deflate", ""):
        answer = client.get(f"{run}/blobs/long", accept_encoding=accepted)
        assert "content-encoding" not in answer.headers
        assert answer.body == data
    short = client.get(f"{run}/blobs/short", accept_encoding="gzip")
    assert short.body == b"short"
