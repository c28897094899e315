"""mqtool: read, check and search the store of an Apache RocketMQ broker."""
