"""A run is rebuilt from the bucket with aws, jq, zstd and sqlite3 alone, as documented."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random  # noqa: TID251

import pytest

from tests.support import versitygw
from tests.support.client import Client
from tests.support.processes import Process, free_port, wait_for

SCRIPT = Path(__file__).parents[2] / "deploy" / "recover-run.sh"
TOOLS = ("aws", "jq", "zstd", "sqlite3")


@pytest.mark.parametrize("prefix", ["", "/some/prefix"])
def test_a_run_is_recovered_by_hand(tmp_path: Path, prefix: str) -> None:
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"there is no {', '.join(lacking)}")
    if versitygw.install() is None:
        pytest.skip("versitygw is not there and there is no go to build it with")
    random = Random(7)
    with versitygw.versitygw(tmp_path / "s3") as gateway:
        environment = gateway.environment()
        port = free_port()
        command = [sys.executable, "-m", "cellstore", "serve", "--listen", f"127.0.0.1:{port}"]
        command += ["--data-dir", str(tmp_path / "data"), "--sync-secs", "0.1"]
        command += ["--bucket", gateway.url + prefix]
        node = Process(command, port, tmp_path / "node.log", environment).ready()
        client = Client(node.url)
        try:

            def published() -> bool:
                cells = client.request("GET", "/status").json()["cells"]
                return all(cell["replicated"] for cell in cells)

            def ok(method: str, path: str, body: bytes = b"") -> None:
                assert client.request(method, f"/runs/r/{path}", body).status == 200

            for seq in range(30):
                ok("POST", "records", b'{"seq":%d,"text":"it\'s %d"}' % (seq, seq))
            ok("PUT", "blobs/gone", b"soon")
            ok("PUT", "blobs/large", random.randbytes(300_000))
            wait_for(published, "publishing")
            ok("PUT", "records", b'[{"seq":5},{"seq":2}]')
            ok("DELETE", "blobs/gone")
            ok("PUT", "blobs/folded", random.randbytes(1_500_000))
            wait_for(published, "publishing")
            ok("POST", "records", b'{"seq":9,"late":true}')
            wait_for(published, "publishing")
            ok("PUT", "blobs/folded", b"short now")
            served = client.request("GET", "/runs/r/records").json()
            keys = client.request("GET", "/runs/r/blobs").json()
            blobs = {key: client.request("GET", f"/runs/r/blobs/{key}").body for key in keys}
        finally:
            client.close()
            assert node.stop() == 0
        newest = max((tmp_path / "s3").glob("**/cells/r/meta/*.json"))
        record = json.loads(newest.read_bytes())
        assert record["base"]
        assert record["pieces"]
        out = tmp_path / "recovered.db"
        subprocess.run(
            [SCRIPT, gateway.url + prefix, "r", out],
            check=True,
            env=os.environ
            | {
                "AWS_ENDPOINT_URL": gateway.endpoint,
                "AWS_ACCESS_KEY_ID": environment["CHIDORI_RUN_STORE_ACCESS_KEY_ID"],
                "AWS_SECRET_ACCESS_KEY": environment["CHIDORI_RUN_STORE_SECRET_ACCESS_KEY"],
                "AWS_REGION": "us-east-1",
            },
        )
    with closing(sqlite3.connect(out)) as recovered:
        rows = recovered.execute("SELECT data FROM records ORDER BY pos").fetchall()
        assert [json.loads(data) for (data,) in rows] == served
        assert served == [{"seq": 5}, {"seq": 2}, {"seq": 9, "late": True}]
        found = recovered.execute("SELECT key, data FROM blobs WHERE data IS NOT NULL").fetchall()
        assert dict(found) == blobs
        assert set(blobs) == {"folded", "large"}
