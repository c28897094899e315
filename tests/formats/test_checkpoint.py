"""The checkpoint: every one of the golden stores, and the one of the format's description."""

import numpy as np
import pytest

from mqtool.formats.checkpoint import CHECKPOINT, CHECKPOINT_SIZE
from tests.golden import GOLDEN_NAMES, golden_store, manifest

JAVA_NAMES = {
    "physicMsgTimestamp": "physical_timestamp",
    "logicsMsgTimestamp": "logics_timestamp",
    "indexMsgTimestamp": "index_timestamp",
    "masterFlushedOffset": "master_flushed_offset",
    "confirmPhyOffset": "confirm_physical_offset",
}


def test_the_checkpoint_of_the_description_is_parsed_and_built() -> None:
    raw = bytes.fromhex("0000018bcfe5687b 0000018bcfe56817 0000018bcfe554f3 0000000000000000 00000000400000c8")
    raw = raw.ljust(4096, b"\0")

    checkpoint = CHECKPOINT.schema.parse(raw)

    assert (checkpoint.physical_timestamp, checkpoint.logics_timestamp) == (1700000000123, 1700000000023)
    assert (checkpoint.index_timestamp, checkpoint.master_flushed_offset) == (1699999995123, 0)
    assert (checkpoint.confirm_physical_offset, checkpoint.logics_physical_offset) == (1073742024, 0)
    assert CHECKPOINT.schema.build(checkpoint) == raw


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_checkpoint_is_parsed_and_built_back(name: str) -> None:
    raw = (golden_store(name) / "checkpoint").read_bytes()

    checkpoint = CHECKPOINT.schema.parse(raw)

    assert CHECKPOINT.schema.build(checkpoint) == raw
    assert len(raw) == CHECKPOINT_SIZE
    assert not any(checkpoint.rest)
    row = np.frombuffer(raw, CHECKPOINT.dtype)[0]
    assert [int(row[name]) for name in JAVA_NAMES.values()] == [checkpoint[name] for name in JAVA_NAMES.values()]


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if manifest(name)["end"] == "clean"])
def test_golden_checkpoints_say_what_java_reads_in_them(name: str) -> None:
    told = manifest(name)["load"]["after_load"]["checkpoint"]

    checkpoint = CHECKPOINT.schema.parse((golden_store(name) / "checkpoint").read_bytes())

    # Loading moves the confirmed offset, and 4.x does not know it.
    stable = ["physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp"]
    assert [checkpoint[JAVA_NAMES[name]] for name in stable] == [told[name] for name in stable]


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if "-497-" in name])
def test_fields_that_a_version_does_not_know_are_zero(name: str) -> None:
    checkpoint = CHECKPOINT.schema.parse((golden_store(name) / "checkpoint").read_bytes())

    assert checkpoint.master_flushed_offset == 0
    assert checkpoint.confirm_physical_offset == 0
    assert checkpoint.logics_physical_offset == 0
