"""A second reader of stores, in plain Python, that shares nothing with mqtool: it judges what mqtool did to one.

Slow and simple: every byte of the log is looked at for records, every unit and entry is read. What it knows of the
formats is written here once more, with ``struct``; ``test_judge.py`` holds it against what Java read in the golden
stores, and holds that no file here imports mqtool.

- ``log.py``: records, sound ones and what is wrong with others
- ``queues.py``: units of consume queues, batch queues and extensions
- ``index.py``: entries and their chains
- ``store.py``: all of one store, and what it says of messages and queue offsets
"""
