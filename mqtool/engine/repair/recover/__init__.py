"""The repair ``recover``: repairs log, queues and index so that any broker starts on them, without loss."""
