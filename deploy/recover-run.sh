#!/usr/bin/env bash
# Rebuild one run from the bucket by hand: aws, jq, zstd and sqlite3 are all it takes.
#
#   deploy/recover-run.sh s3://BUCKET[/PREFIX] RUN OUT.db
#
# Writes a new SQLite database; nothing in the bucket is changed. Set AWS_ENDPOINT_URL for a service
# that is not AWS. What each step relies on is in docs/storage-format.md.
set -euo pipefail
[ $# -eq 3 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
prefix=${1%/} run=$2 out=$3
[ ! -e "$out" ] || { echo "$out is there already" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

get() { aws s3 cp --quiet "$prefix/$1" "$2"; }
same() { echo "$1  $2" | sha256sum --check --quiet; }

# The record of the highest epoch is the state of the run.
newest=$(aws s3 ls "$prefix/cells/$run/meta/" | awk '{print $4}' | sort | tail -n 1)
[ -n "$newest" ] || { echo "no records of run $run in $prefix" >&2; exit 1; }
get "cells/$run/meta/$newest" "$work/record.json"

# The base, if there is one: a whole database.
base=$(jq -r '.base.key // empty' "$work/record.json")
if [ -n "$base" ]; then
    get "$base" "$work/base.zst"
    same "$(jq -r .base.sha256 "$work/record.json")" "$work/base.zst"
    zstd -dq "$work/base.zst" -o "$out"
fi

# Then the pieces in order: each is a small database, in a record's delta or in a segment.
jq -c '.pieces[]' "$work/record.json" | while read -r piece; do
    key=$(jq -r '.key // empty' <<<"$piece")
    if [ -n "$key" ]; then
        get "$key" "$work/piece.zst"
    else
        get "cells/$run/meta/$(printf %020d "$(jq -r .epoch <<<"$piece")").json" "$work/holder.json"
        jq -r .delta "$work/holder.json" | base64 -d >"$work/piece.zst"
    fi
    same "$(jq -r .sha256 <<<"$piece")" "$work/piece.zst"
    zstd -dqf "$work/piece.zst" -o "$work/piece.db"
    if [ ! -e "$out" ]; then
        # Without a base the first piece starts from nothing, so it is the whole run so far.
        cp "$work/piece.db" "$out"
        continue
    fi
    sqlite3 -bail "$out" <<SQL
ATTACH '$work/piece.db' AS piece;
BEGIN;
DELETE FROM records WHERE rev < (SELECT rev FROM piece.marks WHERE name = 'records');
INSERT OR REPLACE INTO marks SELECT * FROM piece.marks;
INSERT OR REPLACE INTO blobs SELECT * FROM piece.blobs;
INSERT OR REPLACE INTO records SELECT * FROM piece.records;
DELETE FROM counters;
INSERT INTO counters SELECT * FROM piece.counters;
COMMIT;
SQL
done

[ -e "$out" ] || { echo "run $run has no content" >&2; exit 1; }
[ "$(sqlite3 "$out" 'PRAGMA integrity_check')" = ok ]
[ "$(sqlite3 "$out" 'SELECT revision FROM counters')" = "$(jq -r .rev "$work/record.json")" ]
echo "$out: $(sqlite3 "$out" 'SELECT count(*) FROM records') records," \
    "$(sqlite3 "$out" 'SELECT count(*) FROM blobs WHERE data IS NOT NULL') blobs"
