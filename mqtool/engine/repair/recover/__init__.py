"""The repair ``recover``: makes log, queues and index such that any broker starts on them, without loss."""
