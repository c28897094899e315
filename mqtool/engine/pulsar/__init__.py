"""The rules of a Pulsar broker on top of a RocketMQ store; they take time and bytes as arguments and use no sockets."""
