"""Operations of a broker for its clients, without a protocol: plain values in, an outcome out.

An outcome is what was done, an ``OperationRefusedError`` with a reason, or a ``Waiting``, which later calls what its
``then`` is set to.
"""
