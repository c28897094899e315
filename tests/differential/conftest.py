"""The JVMs of these tests: one for each version and process, started when first asked."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.differential.java_store import JavaStore, NoJavaError, class_path

REQUIRED = "CI" in os.environ or "MQTOOL_REQUIRE_JAVA" in os.environ


def jars(version: str, pom_name: str = "pom.xml") -> str:
    """Return the class path of a version. Without Java the test is skipped, but fails in CI."""
    try:
        return class_path(version, pom_name)
    except NoJavaError as error:
        message = f"NOT COMPARED WITH ROCKETMQ {version}: {error}"
        if REQUIRED:
            pytest.fail(message)
        pytest.skip(message)


@pytest.fixture(scope="session")
def java_store() -> Iterator[Callable[[str], JavaStore]]:
    """Return the broker's store of a version. Without Java tests are skipped, but fail in CI."""
    stores: dict[str, JavaStore] = {}
    with ExitStack() as stack:

        def of(version: str) -> JavaStore:
            if version not in stores:
                jars(version)
                stores[version] = stack.enter_context(JavaStore(version))
            return stores[version]

        yield of
