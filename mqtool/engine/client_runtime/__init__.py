"""Client rules on real sockets and clocks."""

from mqtool.engine.client_runtime.wire import Wire, together

__all__ = ["Wire", "together"]
