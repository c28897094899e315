"""What a broker does for its clients, without a wire: plain values in, an outcome out.

An outcome is what was done, a ``RefusedError`` with a reason, or a ``Waiting``: that is told later, to what its
``then`` is set to.
"""
