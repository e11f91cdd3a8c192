"""A bucket's URL and the environment, and what is refused of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cellstore.errors import StartRefused
from cellstore.s3config import S3Config, from_environment

OURS = {
    "CHIDORI_RUN_STORE_ACCESS_KEY_ID": "our-id",
    "CHIDORI_RUN_STORE_SECRET_ACCESS_KEY": "our-secret",
}
AWS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://journals", "journals", ""),
        ("s3://journals/", "journals", ""),
        ("s3://journals/a", "journals", "a/"),
        ("s3://journals//a/", "journals", "a/"),
        ("s3://journals/a/b.c_d@e-f/", "journals", "a/b.c_d@e-f/"),
        ("s3://My_Bucket.1", "My_Bucket.1", ""),
    ],
)
def test_urls(url: str, bucket: str, prefix: str) -> None:
    assert from_environment(url, {}) == S3Config(bucket, prefix)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "journals",
        "http://journals",
        "S3://journals",
        "s3:/journals",
        "s3://",
        "s3://ab",
        "s3://-journals",
        "s3://a/b",
        f"s3://{'a' * 64}",
        "s3://journals/a//b",
        "s3://journals/../b",
        "s3://journals/a/./b",
        "s3://journals/a?x=y",
        "s3://journals/a#b",
        "s3://journals/a b",
        "s3://journals/a\n",
        "s3://journals:9000/a",
    ],
)
def test_bad_urls_are_named(url: str) -> None:
    with pytest.raises(StartRefused) as raised:
        from_environment(url, {})
    assert str(raised.value).startswith(f"{url}: ")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (None, None, None)),
        (OURS, ("our-id", "our-secret", None)),
        (AWS, ("id", "secret", "token")),
        (OURS | AWS, ("our-id", "our-secret", None)),
        ({"AWS_ACCESS_KEY_ID": "id"}, (None, None, None)),
        ({"AWS_SESSION_TOKEN": "token"}, (None, None, None)),
        (AWS | {"AWS_SESSION_TOKEN": ""}, ("id", "secret", None)),
        (dict.fromkeys(OURS, "") | AWS, ("id", "secret", "token")),
    ],
)
def test_credentials(environ: Mapping[str, str], expected: tuple[str | None, ...]) -> None:
    config = from_environment("s3://journals", environ)
    assert (config.access_key_id, config.secret_access_key, config.session_token) == expected
    assert not {"our-secret", "secret", "token"} & set(repr(config).split("'"))


@pytest.mark.parametrize("name", list(OURS))
def test_half_of_the_credentials(name: str) -> None:
    [missing] = set(OURS) - {name}
    with pytest.raises(StartRefused, match=f"{missing} is not set") as raised:
        from_environment("s3://journals", {name: "our-secret"})
    assert "our-secret" not in str(raised.value)


def test_regions() -> None:
    ours = {"CHIDORI_RUN_STORE_REGION": "eu-west-1"}
    aws = {"AWS_REGION": "eu-central-1"}
    assert from_environment("s3://journals", ours | aws).region == "eu-west-1"
    assert from_environment("s3://journals", aws).region == "eu-central-1"
    assert from_environment("s3://journals", {}).region == "us-east-1"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "https://s3.example.org/"])
def test_endpoints(endpoint: str) -> None:
    environ = {"CHIDORI_RUN_STORE_ENDPOINT": endpoint}
    assert from_environment("s3://journals", environ).endpoint == endpoint


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://x", "http://", "http://x/path"])
def test_bad_endpoints_are_named(endpoint: str) -> None:
    with pytest.raises(StartRefused, match=f"CHIDORI_RUN_STORE_ENDPOINT {endpoint}: it is not"):
        from_environment("s3://journals", {"CHIDORI_RUN_STORE_ENDPOINT": endpoint})


def test_credentials_in_addresses_are_not_repeated() -> None:
    for url, environ in (
        ("s3://id:hidden@journals/a", {}),
        ("s3://journals", {"CHIDORI_RUN_STORE_ENDPOINT": "http://id:hidden@host"}),
    ):
        with pytest.raises(StartRefused) as raised:
            from_environment(url, environ)
        assert "hidden" not in str(raised.value)
