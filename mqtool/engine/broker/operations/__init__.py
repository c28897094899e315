"""Operations of a broker for its clients, independent of a protocol: plain values in, an outcome out.

An outcome is a result, an ``OperationRefusedError`` with a reason, or a ``Waiting``, which later calls its ``then``.
"""
