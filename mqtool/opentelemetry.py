"""Traces of OpenTelemetry for clients (extra ``otel``): a message takes the trace of its sender along.

>>> mqtool.Producer("shop", hooks=[OpenTelemetryHook()])  # doctest: +SKIP

The trace travels in the property ``traceparent``, as other clients instrumented for it have it. Names and attributes
are those of the semantic conventions for messaging.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider

from mqtool.engine.client.consuming import ConsumeStatus
from mqtool.engine.client_runtime.hooks import Hook

if TYPE_CHECKING:
    from mqtool.engine.client.incoming import ConsumerMessage
    from mqtool.engine.client.outgoing import ProducerMessage
    from mqtool.engine.client.sending import SendResult


class OpenTelemetryHook(Hook):
    """Starts a span for each send, each listener call, and each time that the program receives requested messages."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """Use the global provider if none is given."""
        self._tracer = trace.get_tracer("mqtool", tracer_provider=tracer_provider)

    def before_send(self, messages: "Sequence[ProducerMessage]", group: str) -> Any:
        """Start a span within the current one, and add its context to the messages."""
        topic = messages[0].topic
        attributes = {**_attributes("send", topic, group), **_batch(len(messages))}
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        inside = trace.set_span_in_context(span)
        for message in messages:
            propagate.inject(message.properties, inside)
        return span

    def after_send(
        self,
        messages: "Sequence[ProducerMessage]",  # noqa: ARG002
        started: Any,
        results: "Sequence[SendResult]",
        error: BaseException | None,
    ) -> None:
        """End the span."""
        if len(results) == 1:
            started.set_attribute("messaging.message.id", results[0].message_id)
        if len({result.queue for result in results}) == 1:
            started.set_attribute("messaging.destination.partition.id", str(results[0].queue.queue_id))
        _end(started, error)

    def before_consume(self, messages: "Sequence[ConsumerMessage]", group: str) -> Any:
        """Start a span in the trace of the message, or one that is linked to those of several messages."""
        topic = messages[0].topic
        sent = [propagate.extract(message.properties) for message in messages]
        spans = [trace.get_current_span(sender).get_span_context() for sender in sent]
        attributes = {**_attributes("process", topic, group), **_batch(len(messages))}
        if len(messages) == 1:
            attributes["messaging.message.id"] = messages[0].message_id
        span = self._tracer.start_span(
            f"process {topic}",
            context=sent[0] if len(messages) == 1 else None,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(span_context) for span_context in spans if span_context.is_valid],
        )
        return span, context.attach(trace.set_span_in_context(span))

    def after_consume(
        self,
        messages: "Sequence[ConsumerMessage]",  # noqa: ARG002
        started: Any,
        status: Any,
        error: BaseException | None,
    ) -> None:
        """End the span."""
        span, token = started
        context.detach(token)
        if status is ConsumeStatus.LATER:
            span.set_status(Status(StatusCode.ERROR, "the messages will be redelivered"))
        _end(span, error)


def _attributes(operation: str, topic: str, group: str) -> dict[str, Any]:
    return {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.consumer.group.name" if operation == "process" else "messaging.rocketmq.client_group": group,
    }


def _batch(count: int) -> dict[str, int]:
    return {"messaging.batch.message_count": count} if count > 1 else {}


def _end(span: trace.Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
