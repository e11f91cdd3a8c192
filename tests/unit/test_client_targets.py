"""Which URLs a client sends its token to."""

from __future__ import annotations

import httpx
import pytest

from cellstore.client.targets import ANYWHERE, parse_patterns, parse_target


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://host", "http://host"),
        ("HTTP://Host:80/", "http://host"),
        ("https://host:443", "https://host"),
        ("https://host:80", "https://host:80"),
        ("http://host:09700//", "http://host:9700"),
        ("http://10.0.0.8:9700/a/b%20c/", "http://10.0.0.8:9700/a/b%20c"),
        ("http://[::1]:9700", "http://[::1]:9700"),
        ("http://node_1.svc", "http://node_1.svc"),
    ],
)
def test_good_urls(url: str, same: str) -> None:
    target = parse_target(url)
    assert target is not None
    assert target.url == same
    assert parse_target(same) == target
    # What is sent there arrives there.
    sent = httpx.URL(target.url)
    assert sent.scheme == target.scheme
    assert sent.host == target.host.strip("[]")
    assert (sent.port or {"http": 80, "https": 443}[sent.scheme]) == target.port


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:9700",
        "//host",
        "ftp://host",
        "file:///etc/passwd",
        "http://",
        "http://:9700",
        "http://host:0",
        "http://host:65536",
        "http://host:x",
        "http://host:",
        "http://user@host",
        "http://user:password@host",
        "http://good.example\\@evil.example",
        "http://host?query",
        "http://host/#fragment",
        "http://host/a b",
        "http://host/../x",
        " http://host",
        "http://host\n",
        "http://ho\tst",
        "http://hést",
        "http://[::1",
        "http://%65vil",
        "https+unix://host",
    ],
)
def test_bad_urls(url: str) -> None:
    assert parse_target(url) is None


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("http://node-a", ["http://node-a", "http://node-a:80"], ["http://node-a:9700"]),
        ("https://node-a", ["https://node-a:443"], ["http://node-a", "https://node-a:80"]),
        ("http://node-a:*", ["http://node-a:1", "http://NODE-A/x"], ["https://node-a:1"]),
        ("*://node-a", ["http://node-a", "https://node-a"], ["http://node-a:443"]),
        ("http://10.0.*:9700", ["http://10.0.0.8:9700"], ["http://10.1.0.8:9700", "http://10x0.1"]),
        (
            "https://*.example.com",
            ["https://a.example.com", "https://a.b.example.com"],
            ["https://example.com", "https://a.example.com.evil", "https://a-example.com"],
        ),
        ("HTTP://Node-*-x:9700", ["http://node-1-x:9700"], ["http://node-1:9700"]),
        ("http://[::1]:9700", ["http://[::1]:9700"], ["http://[::2]:9700"]),
        ("http://*:*", ["http://a", "http://[::1]:5"], ["https://a"]),
    ],
)
def test_patterns(pattern: str, allowed: list[str], refused: list[str]) -> None:
    (read,) = parse_patterns([pattern])
    for urls, expected in ((allowed, True), (refused, False)):
        for url in urls:
            target = parse_target(url)
            assert target is not None
            assert read.allows(target) is expected, url


@pytest.mark.parametrize(
    "pattern", ["", "*", "host", "ftp://x", "http://", "http://a/b", "http://a:b", "http://u@h"]
)
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern"):
        parse_patterns([pattern])


def test_any_http_is_the_default() -> None:
    patterns = parse_patterns(ANYWHERE)
    for url in ("http://a", "https://b:1", "http://[::1]:9/x"):
        target = parse_target(url)
        assert target is not None
        assert any(pattern.allows(target) for pattern in patterns)
