"""mqtool against the store classes of real brokers, which a JVM runs. Marked ``java``: ``./check`` leaves them out."""
