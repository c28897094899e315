"""mqtool: read, check and search the store of an Apache RocketMQ broker.

>>> import mqtool
>>> store = mqtool.open_store("fixtures/store")  # doctest: +SKIP
>>> next(store.messages()).topic  # doctest: +SKIP
'OrderEvents'

``open_store`` gives a ``StoreReader``; ``verify_store`` lists what is wrong with one. ``Broker`` runs a broker and its
name server in this process. ``Producer`` sends messages; the same for asyncio is in ``mqtool.aio``. Everything is
loaded when it is first used; what there is, is in ``__init__.pyi``.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("mqtool")
    from mqtool.public_names import load

    return load(__name__, name)


def __dir__() -> list[str]:
    from mqtool.public_names import homes_of

    return [*homes_of(__name__)]
