#!/bin/bash
# Runs `mqtool serve` in the foreground, with what java.sh explains. PYTHON: the interpreter that has mqtool.
set -eu
run=("${PYTHON:-python}" -m mqtool serve)
if [ "$ROLE" = NAMESRV ]; then exec "${run[@]}" --no-broker --namesrv-port "$PORT"; fi
exec "${run[@]}" --no-namesrv --port "$PORT" -s "$STORE" -c "$CONF"
