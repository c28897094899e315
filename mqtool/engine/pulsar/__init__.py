"""The rules of a Pulsar broker on a RocketMQ store; they take time and bytes, and know no sockets."""
