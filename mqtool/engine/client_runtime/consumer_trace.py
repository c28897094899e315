"""The producer that sends the trace of a consumer: loaded only if tracing is on."""

from collections.abc import Mapping, Sequence
from typing import Any

from mqtool.engine.client_runtime.message_trace import Sender


def trace_sender(name: str, name_servers: str | Sequence[str] | None, options: Mapping[str, Any]) -> Sender:
    """Return a producer, not started."""
    from mqtool.engine.client_runtime import producer

    return producer.trace_sender(name, name_servers, options)
