"""Laws that every repair and every verdict must keep, and generated damage that looks for violations.

- ``damages.py``: the table of damages, drawn from a seed
- ``cases.py``: a case is a golden store, one or two damages and a repair, described by data
- ``repairs.py``: the repairs that a case may take, and what each tells about losses
- ``laws.py``: conservation, rest, return, no surprise, agreement; judged by ``tests/judge``
- ``shrinking.py``: the smallest case that still violates a law

The long form is ``python -m tests.campaigns.laws``.
"""
