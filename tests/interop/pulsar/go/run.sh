#!/bin/bash
# Run the Go Pulsar client scenarios against a service URL and print one JSON line a scenario.
#   run.sh SERVICE_URL [scenario...]     no scenario: all of the default set; `list` shows the names
# INTEROP_JOBS: scenarios at a time, default 3. PULSAR_ADMIN: HTTP address, default http://HOST:8080.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=${INTEROP_WORK:-${TMPDIR:-/tmp}/mqtool-interop/pulsar}
mkdir -p "$work/go"
cp "$here"/*.go "$here/go.mod" "$work/go/"
(cd "$work/go" && go build -mod=mod -o "$work/interop-pulsar-go" .) >&2
exec "$work/interop-pulsar-go" "$@" 2>"$work/stderr-go.log"
