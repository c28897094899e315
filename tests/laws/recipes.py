"""Violations that were found and repaired, each shrunk to its smallest case: none may come back."""

import json

from tests.laws.cases import LawCase

_ROWS = {
    "a record that reads well stays as it is beside one that comes back": (
        "mixed-497-clean",
        "recover",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 715,
                "len": 338,
                "to": "commitlog/00000000000000131072",
                "to_at": 32868,
            }
        ],
    ),
    "behind the damage at which a log is cut nothing is put back": (
        "txn-533-kill",
        "recover --abnormal --cut",
        [
            {
                "op": "graft",
                "base": "txn-533-clean",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000065536",
            }
        ],
    ),
    "delay levels that are added from a queue that is made again are foretold": (
        "txn-497-clean", "rebuild all", [{"op": "delete", "path": "consumequeue"}]
    ),
    "offsets that follow from messages of a queue that is made again are foretold": (
        "retry-533-clean",
        "rebuild all",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "delete", "path": "config/consumerOffset.json"},
            {"op": "delete", "path": "config/consumerOffset.json.bak"},
        ],
    ),
    "a queue that nobody has, of a message that nobody looked at, is told where that lies": (
        "mixed-533-clean",
        "recover --normal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 347, "hex": "7ffffffe"}],
    ),
    "a file of a batch queue that is not padded does not keep a broker from starting": (
        "batchcq-533-clean",
        "doctor",
        [
            {
                "op": "rename",
                "path": "batchconsumequeue/Inner/0/00000000000000000000",
                "to": "batchconsumequeue/Inner/0/000000000000000000000",
            }
        ],
    ),
    "messages that a start hides and recover leaves so lead to a new store": (
        "mixed-550-clean",
        "doctor",
        [
            {
                "op": "graft",
                "base": "mixed-533-kill",
                "path": "commitlog/00000000000000131072",
                "to": "commitlog/00000000000000131072",
            }
        ],
    ),
    "the last segments that stay are looked at after a clean stop, so that the next recover finds nothing in them": (
        "mixed-497-clean",
        "recover",
        [
            {"op": "zero", "file": "commitlog/00000000000000131072", "at": 457, "len": 65079},
            {"op": "zero", "file": "commitlog/00000000000000196608", "at": 0, "len": 65536},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 1065, "hex": "00000000"},
        ],
    ),
    "the end of a record whose sector was exchanged comes back with the records behind it": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 28672,
                "len": 4096,
                "to": "commitlog/00000000000000000000",
                "to_at": 8192,
            }
        ],
    ),
    "of a batch whose properties are damaged those stay that can be read": (
        "batchcq-533-clean",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 36864, "hex": "aa" * 4096}],
    ),
    "a record of which only the address is damaged is not told as lost": (
        "mixed-533-clean",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 2809, "hex": "6e313131"}],
    ),
    "an inner batch whose address and queue offset are damaged gets both again": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 15360,
                "len": 16,
                "to": "commitlog/00000000000000000000",
                "to_at": 5760,
            }
        ],
    ),
    "of a hole in a log with CRC properties no filler is left without one": (
        "propcrc-533-clean",
        "recover",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "zero", "file": "commitlog/00000000000000065536", "at": 23764, "len": 88},
        ],
    ),
    "what a rebuild finds missing in queues that are gone is told": (
        "multipath-533-clean",
        "rebuild all",
        [
            {"op": "delete", "path": "consumequeue/Multi"},
            {
                "op": "swap bytes",
                "file": "commitlog-b/00000000000000196608",
                "at": 0,
                "len": 4096,
                "to": "commitlog-a/00000000000000262144",
                "to_at": 0,
            },
        ],
    ),
    "a whole record from elsewhere over the head of one in its place does not hide that": (
        "txn-533-kill",
        "rebuild index",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 8175,
                "len": 329,
                "to": "commitlog/00000000000000000000",
                "to_at": 5395,
            }
        ],
    ),
    "no queue is due for a topic that no broker can have, of zeros": (
        "ext-497-kill",
        "rebuild all",
        [{"op": "zero", "file": "commitlog/00000000000000000000", "at": 38894, "len": 3}],
    ),
    "a message with such a topic is not exported": (
        "mixed-550-kill",
        "export | import",
        [{"op": "zero", "file": "commitlog/00000000000000196608", "at": 28486, "len": 11}],
    ),
    "what a message with such a topic leaves in its queue is told where it lies, be the next one segments later": (
        "multipath-497-kill",
        "recover --normal",
        [{"op": "zero", "file": "commitlog-b/00000000000000065536", "at": 63869, "len": 5}],
    ),
    "a folder among the segments stays, and the plan names it": (
        "txn-533-kill", "recover --abnormal", [{"op": "mkdir", "path": "commitlog/old"}]
    ),
    "a table that cannot be read stays, and the plan names it": (
        "retry-497-clean", "recover --abnormal", [{"op": "resize", "file": "config/topics.json", "size": 3}]
    ),
    "delay levels that are ahead of their queues stay so, and the plan names them": (
        "retry-497-clean",
        "recover --abnormal",
        [{"op": "zero", "file": "commitlog/00000000000000000000", "at": 9000, "len": 56536}],
    ),
    "a placeholder of several messages is a batch, however long what it tells": (
        "batchcq-533-kill",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 732, "hex": "80"},
            {"op": "delete", "path": "batchconsumequeue/Inner"},
        ],
    ),
    "no unit is due at a queue offset whose place is no number of 64 bits": (
        "special-550-kill",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 3944, "hex": "7fffffffffffffff"},
            {"op": "swap", "path": "commitlog/00000000000000032768", "to": "commitlog/00000000000000000000"},
        ],
    ),
    "a placeholder cancels no timer, and the plan says so": (
        "timer-533-kill",
        "recover --abnormal",
        [
            {
                "op": "copy",
                "file": "commitlog/00000000000000000000",
                "at": 0,
                "len": 4096,
                "to": "commitlog/00000000000000000000",
                "to_at": 4096,
            }
        ],
    ),
    "a message whose queue id became negative goes to the queue that lacks it": (
        "multipath-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog-a/00000000000000000000", "at": 2351, "hex": "ffffffff"}],
    ),
    "a rebuild names the queue that no broker has": (
        "special-550-kill",
        "rebuild all",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 12, "hex": "ffffffff"}],
    ),
    "the first message of a queue has an offset that no queue has": (
        "txn-497-clean",
        "recover",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 20, "hex": "7ffffffffffffffe"}],
    ),
    "an import takes nothing of where the log of another store lies": ("multipath-533-clean", "export | import", []),
    "a segment that was renamed gets its name again": (
        "retry-497-clean",
        "recover --abnormal --cut",
        [{"op": "rename", "path": "commitlog/00000000000000000000", "to": "commitlog/00000000000000000001"}],
    ),
    "segments that were swapped are put back": (
        "multipath-533-clean",
        "recover --abnormal",
        [
            {"op": "create", "file": "abort", "size": 0},
            {
                "op": "swap",
                "path": "commitlog-a/00000000000000000000",
                "to": "commitlog-b/00000000000000065536",
            },
        ],
    ),
    "what the log lacks and queues lead to is told by a rebuild": (
        "mixed-497-clean",
        "rebuild queues",
        [{"op": "zero", "file": "commitlog/00000000000000196608", "at": 40000, "len": 25536}],
    ),
    "a rebuild leaves the place of a lost message free, also of a queue's second": (
        "propcrc-533-clean",
        "rebuild queues",
        [{"op": "zero", "file": "commitlog/00000000000000065536", "at": 23104, "len": 64}],
    ),
    "records that are put back keep their units, also beside one that is lost": (
        "txn-533-kill",
        "recover --abnormal",
        [
            {
                "op": "excise",
                "file": "commitlog/00000000000000000000",
                "at": 10820,
                "len": 100,
                "keep": True,
            }
        ],
    ),
    "a queue's file whose name is an absurd number takes no time": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {
                "op": "rename",
                "path": "consumequeue/OrderEvents/1/00000000000000000400",
                "to": "consumequeue/OrderEvents/1/09000000000000000000",
            },
            {"op": "zero", "file": "commitlog/00000000000000065536", "at": 400, "len": 800},
        ],
    ),
    "nor does it where a message does not fit, for which all units are looked at": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {
                "op": "rename",
                "path": "consumequeue/OrderEvents/1/00000000000000000400",
                "to": "consumequeue/OrderEvents/1/09000000000000000000",
            },
            {"op": "write", "file": "commitlog/00000000000000131072", "at": 58039, "hex": "0000000000000001"},
        ],
    ),
    "of two logs that were mixed every queue offset leads to a message": (
        "mixed-497-kill",
        "recover --abnormal",
        [
            {
                "op": "graft",
                "base": "mixed-533-kill",
                "path": "commitlog/00000000000000262144",
                "to": "commitlog/00000000000000262144",
            }
        ],
    ),
    "an empty unit before the part that is looked at has the whole log read": (
        "multipath-533-clean",
        "recover",
        [{"op": "zero", "file": "consumequeue/Multi/0/00000000000000001200", "at": 270, "len": 2}],
    ),
    "a unit of an extension over which no broker can walk stays, and the plan names it": (
        "ext-497-kill",
        "recover",
        [{"op": "zero", "file": "consumequeue_ext/Ext/1/00000000000000000000", "at": 515, "len": 20}],
    ),
    "what the queues of another log lead to is told": (
        "txn-497-clean",
        "recover --normal",
        [
            {
                "op": "graft",
                "base": "txn-533-kill",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000000000",
            }
        ],
    ),
    "what the batch queues of another log lead to is told": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {
                "op": "graft",
                "base": "batchcq-533-kill",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000000000",
            }
        ],
    ),
    "a message between the last that is kept and the first that is cut off is told": (
        "mixed-550-clean",
        "recover --abnormal --cut",
        [
            {"op": "zero", "file": "commitlog/00000000000000262144", "at": 12288, "len": 4096},
            {"op": "zero", "file": "consumequeue/OrderEvents/1/00000000000000000400", "at": 20, "len": 380},
        ],
    ),
    "what is written to a segment with another name is foretold under the new one": (
        "special-550-kill",
        "recover --abnormal",
        [
            {
                "op": "swap",
                "path": "commitlog/00000000000000032768",
                "to": "commitlog/00000000000000000000",
            },
            {"op": "zero", "file": "commitlog/00000000000000032768", "at": 20480, "len": 4096},
        ],
    ),
    "the last message of a queue that another lies over is told": (
        "ext-497-kill",
        "recover --abnormal",
        [
            {
                "op": "copy",
                "file": "commitlog/00000000000000000000",
                "at": 24317,
                "len": 354,
                "to": "commitlog/00000000000000000000",
                "to_at": 38290,
            }
        ],
    ),
    "units of a batch queue behind the end of the log are told": (
        "batchcq-533-clean",
        "recover --abnormal",
        [{"op": "zero", "file": "commitlog/00000000000000000000", "at": 30000, "len": 35536}],
    ),
    "a rebuild names batch queues": (
        "batchcq-533-kill", "rebuild all", [{"op": "delete", "path": "batchconsumequeue/Inner/0"}]
    ),
    "a batch whose queue offset is absurd is salvaged under its own": (
        "batchcq-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 1937, "hex": "01"}],
    ),
    "a batch without its flag is exported and imported as one": (
        "batchcq-533-kill",
        "export | import",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 0,
                "len": 512,
                "to": "commitlog/00000000000000000000",
                "to_at": 37888,
            }
        ],
    ),
    "what a swap of pages has changed is as it was before it": (
        "batchcq-533-clean",
        "recover",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 30720,
                "len": 512,
                "to": "commitlog/00000000000000000000",
                "to_at": 10240,
            }
        ],
    ),
    "records behind bytes that were cut out are salvaged as they say": (
        "rocksdb-550-clean",
        "salvage",
        [{"op": "excise", "file": "commitlog/00000000000000000000", "at": 13732, "len": 4096, "keep": True}],
    ),
    "units that lead into the log of another life are told as losses": (
        "txn-497-clean",
        "recover --abnormal",
        [
            {"op": "resize", "file": "commitlog/00000000000000000000", "size": 131072},
            {
                "op": "graft",
                "base": "txn-533-clean",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000000000",
            },
        ],
    ),
    "a rebuild names the offsets that it takes back": (
        "retry-533-clean",
        "rebuild all",
        [
            {
                "op": "graft",
                "base": "retry-497-clean",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000000000",
            }
        ],
    ),
    "a timer that was further than its queue becomes is named": (
        "timer-533-clean",
        "recover --abnormal",
        [{"op": "zero", "file": "commitlog/00000000000000000000", "at": 6412, "len": 59124}],
    ),
    "a copy of a record in the place of another leads to nothing in a queue that is made again": (
        "multipath-533-clean",
        "rebuild queues",
        [
            {
                "op": "copy",
                "file": "commitlog-b/00000000000000065536",
                "at": 788,
                "len": 678,
                "to": "commitlog-a/00000000000000000000",
                "to_at": 61282,
            }
        ],
    ),
    "a new store has no offsets of queues that it lacks": (
        "txn-497-clean",
        "salvage",
        [{"op": "zero", "file": "commitlog/00000000000000000000", "at": 6000, "len": 59536}],
    ),
    "a rebuild tells the messages of units that are empty among those of lost messages": (
        "ext-533-clean",
        "rebuild queues",
        [
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 9596, "len": 55940},
            {"op": "zero", "file": "consumequeue/Ext/1/00000000000000000800", "at": 0, "len": 400},
        ],
    ),
    "a rebuild tells the messages behind the end of a log that was cut": (
        "special-497-clean",
        "rebuild all",
        [{"op": "resize", "file": "commitlog/00000000000000065536", "size": 0}],
    ),
    "a rebuild names extensions": (
        "ext-533-clean", "rebuild queues", [{"op": "delete", "path": "consumequeue_ext/Ext/0"}]
    ),
    "a rebuild of an index names the checkpoint only where it becomes another": (
        "batchcq-533-kill", "rebuild index", []
    ),
    "a unit that was never one is no message that a start gives up": (
        "timer-533-clean",
        "doctor",
        [
            {
                "op": "write",
                "file": "consumequeue/Timed2/0/00000000000000000000",
                "at": 200,
                "hex": "e5703046fb03ad045ea693e4449ba3e45cb25cb8",
            }
        ],
    ),
    "doctor leads from files of a queue that were swapped to what keeps every place": (
        "multipath-533-clean",
        "doctor",
        [
            {
                "op": "swap",
                "path": "consumequeue/Multi/1/00000000000000000000",
                "to": "consumequeue/Multi/1/00000000000000002400",
            }
        ],
    ),
    "doctor leads from a queue whose messages are lost as well to what keeps their places": (
        "mixed-533-clean",
        "doctor",
        [
            {"op": "resize", "file": "consumequeue/pay_events/0/00000000000000000000", "size": 199},
            {"op": "delete", "path": "commitlog/00000000000000065536"},
        ],
    ),
    "doctor leads from two messages with one place, which recover leaves, to a store with places for both": (
        "mixed-497-clean",
        "doctor",
        [{"op": "write", "file": "commitlog/00000000000000196608", "at": 53390, "hex": "000000000000001c"}],
    ),
    "a damaged topic that is too long for a folder's name is no reason to stop": (
        "special-533-clean",
        "doctor",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000065536",
                "at": 5200,
                "len": 16,
                "to": "commitlog/00000000000000032768",
                "to_at": 22592,
            }
        ],
    ),
    "doctor leads from a misnamed file of a queue whose messages are lost as well to recover, then to rebuild": (
        "mixed-533-clean",
        "doctor",
        [
            {
                "op": "rename",
                "path": "consumequeue/OrderEvents/3/00000000000000000400",
                "to": "consumequeue/OrderEvents/3/00000000000000000401",
            },
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 8000, "len": 3000},
        ],
    ),
    "a segment that is too short, and that records are put back into twice, is recovered": (
        "timer-550-clean",
        "recover",
        [
            {"op": "excise", "file": "commitlog/00000000000000000000", "at": 0, "len": 1, "keep": False},
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 0,
                "len": 4096,
                "to": "commitlog/00000000000000000000",
                "to_at": 4096,
            },
        ],
    ),
    "the last message of a queue whose offset jumps ahead is where its unit leads": (
        "batchcq-533-kill",
        "recover --abnormal --cut",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 46390, "hex": "0000000000000022"}],
    ),
    "messages of empty units between those behind the end of the log are told": (
        "special-533-clean",
        "recover --abnormal --cut",
        [
            {"op": "resize", "file": "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/1/00000000000000000000", "size": 150},
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 10550, "len": 22218},
            {"op": "zero", "file": "commitlog/00000000000000032768", "at": 0, "len": 32768},
            {"op": "zero", "file": "commitlog/00000000000000065536", "at": 0, "len": 32768},
        ],
    ),
    "a message whose number is put right in a segment that gets its name again is kept": (
        "retry-533-clean",
        "recover --abnormal --cut",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 16179, "hex": "10"},
            {
                "op": "rename",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000065536000",
            },
        ],
    ),
    "a store whose only segment can be none is refused": (
        "txn-533-clean",
        "recover --normal",
        [
            {"op": "resize", "file": "commitlog/00000000000000000000", "size": 1},
            {
                "op": "rename",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000032768",
            },
        ],
    ),
    "doctor sends to no repair where the only segment can be none": (
        "txn-533-clean",
        "doctor",
        [
            {"op": "resize", "file": "commitlog/00000000000000000000", "size": 1},
            {
                "op": "rename",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000032768",
            },
        ],
    ),
    "messages of a batch queue to which no unit leads are told of a start": (
        "batchcq-533-clean",
        "recover --as-broker 5.3",
        [
            {
                "op": "graft",
                "base": "batchcq-533-kill",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000000000",
            }
        ],
    ),
    "a CRC property of which a letter of its name is damaged is written anew into a new store": (
        "propcrc-533-clean",
        "export | import",
        [{"op": "write", "file": "commitlog/00000000000000065536", "at": 8863, "hex": "4f"}],
    ),
    "a CRC property without its separator is written anew into a new store": (
        "propcrc-forced-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000065536", "at": 12524, "hex": "01"}],
    ),
    "a CRC property that became part of the property before it is written anew into a new store": (
        "propcrc-forced-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 20210, "hex": "82"}],
    ),
    "a CRC property that became part of the property before it is written anew": (
        "propcrc-forced-533-clean",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 20210, "hex": "82"}],
    ),
    "a message in no queue gets its damaged CRC property again": (
        "propcrc-forced-533-clean",
        "recover",
        [{"op": "write", "file": "commitlog/00000000000000032768", "at": 21298, "hex": "41"}],
    ),
    "a file of a queue that a broker removes and makes again as it was is foretold": (
        "retry-533-clean",
        "recover --as-broker 4.9",
        [
            {"op": "create", "file": "abort", "size": 4},
            {"op": "zero", "file": "consumequeue/Retries/0/00000000000000000000", "at": 380, "len": 20},
        ],
    ),
    "an empty unit does not lead to the message at address 0": (
        "txn-497-clean",
        "recover --as-broker 5.3",
        [
            {
                "op": "zero",
                "file": "consumequeue/SCHEDULE_TOPIC_XXXX/0/00000000000000000000",
                "at": 0,
                "len": 400,
            }
        ],
    ),
    "a queue with a negative number is filled by a start": (
        "multipath-497-kill",
        "recover --as-broker 5.3",
        [{"op": "write", "file": "commitlog-b/00000000000000196608", "at": 51569, "hex": "80000000"}],
    ),
    "a broker that no folder serves for a topic is foretold": (
        "ext-497-kill",
        "recover --as-broker 5.5",
        [{"op": "zero", "file": "commitlog/00000000000000000000", "at": 13139, "len": 3}],
    ),
    "a message with the least queue offset that there is is salvaged": (
        "multipath-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog-b/00000000000000196608", "at": 35604, "hex": "8000000000000000"}],
    ),
    "messages between those that units tell of and those that are salvaged are told": (
        "txn-533-clean",
        "salvage",
        [
            {
                "op": "zero",
                "file": "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0/00000000000000000000",
                "at": 287,
                "len": 113,
            },
            {"op": "delete", "path": "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0/00000000000000000400"},
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 0, "len": 16384},
        ],
    ),
    "where no message lies in the last three segments the end of the log is looked for before them": (
        "mixed-550-clean",
        "recover --normal",
        [
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 28002, "len": 37534},
            {"op": "zero", "file": "commitlog/00000000000000065536", "at": 0, "len": 65536},
            {"op": "zero", "file": "commitlog/00000000000000131072", "at": 0, "len": 65536},
            {"op": "zero", "file": "commitlog/00000000000000196608", "at": 0, "len": 65536},
            {"op": "zero", "file": "commitlog/00000000000000262144", "at": 0, "len": 65536},
            {"op": "delete", "path": "consumequeue"},
        ],
    ),
    "plain queues of which the log holds no message any more go when queues are rebuilt": (
        "batchcq-533-clean",
        "rebuild all",
        [{"op": "zero", "file": "commitlog/00000000000000000000", "at": 11147, "len": 54389}],
    ),
    "a message from elsewhere does not become the first of its queue in a rebuild": (
        "special-550-kill",
        "rebuild queues",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 0,
                "len": 398,
                "to": "commitlog/00000000000000000000",
                "to_at": 15048,
            }
        ],
    ),
    "a message of an impossible queue is not imported": (
        "special-533-clean",
        "export | import",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 2520, "hex": "ffffffff"}],
    ),
    "a copy of a later message does not become the message over which it was written": (
        "mixed-550-clean",
        "rebuild queues",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000065536",
                "at": 35026,
                "len": 328,
                "to": "commitlog/00000000000000131072",
                "to_at": 58182,
            }
        ],
    ),
    "units that lead behind the end of a grafted segment are told to be left": (
        "mixed-533-clean",
        "recover --abnormal --cut",
        [
            {
                "op": "graft",
                "base": "mixed-550-clean",
                "path": "commitlog/00000000000000262144",
                "to": "commitlog/00000000000000262144",
            }
        ],
    ),
    "a batch with the number of another gets no unit in a rebuild": (
        "batchcq-533-kill",
        "rebuild queues",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 6202,
                "hex": (b"INNER_BASE\x0134\x02").hex(),
            }
        ],
    ),
    "a message that gets its place again gets the flags of its body beside it": (
        "special-533-clean",
        "recover --abnormal --cut",
        [{"op": "write", "file": "commitlog/00000000000000065536", "at": 11438, "hex": "00000027"}],
    ),
    "the first message of a queue gets its number again where no unit tells it": (
        "rocksdb-550-clean",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 20, "hex": "0000000000000001"}],
    ),
    "a first segment over which a later one of another store was copied is no segment that has gone by age": (
        "special-497-clean",
        "salvage",
        [
            {
                "op": "graft",
                "base": "special-550-kill",
                "path": "commitlog/00000000000000065536",
                "to": "commitlog/00000000000000000000",
            }
        ],
    ),
    "a folder of tables in RocksDB that cannot be read is moved away as a whole": (
        "rocksdb-550-clean",
        "doctor",
        [{"op": "delete", "path": "config/topics/MANIFEST-000005"}],
    ),
    "a batch with a negative queue id is salvaged into the queue that lacks it": (
        "batchcq-533-kill",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 25305, "hex": "80000000"}],
    ),
    "queue offsets between what a queue had and what a rebuild makes of it are told": (
        "mixed-550-clean",
        "rebuild queues",
        [
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 0, "len": 4246},
            {"op": "zero", "file": "consumequeue/pay_events/1/00000000000000000000", "at": 20, "len": 380},
            {"op": "delete", "path": "consumequeue/pay_events/1/00000000000000000400"},
            {"op": "delete", "path": "consumequeue/pay_events/1/00000000000000000800"},
        ],
    ),
    "queue offsets between what a rebuild makes of a queue and what that had behind it are told": (
        "mixed-550-clean",
        "rebuild all",
        [
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 27755, "len": 37781},
            {"op": "zero", "file": "commitlog/00000000000000065536", "at": 0, "len": 65536},
            {"op": "zero", "file": "commitlog/00000000000000131072", "at": 0, "len": 65536},
            {"op": "zero", "file": "commitlog/00000000000000196608", "at": 0, "len": 65536},
            {"op": "zero", "file": "commitlog/00000000000000262144", "at": 0, "len": 65536},
            {"op": "delete", "path": "consumequeue/pay_events/1/00000000000000000000"},
        ],
    ),
    "queue offsets between what a batch queue had and what a rebuild makes of it are told": (
        "batchcq-533-kill",
        "rebuild queues",
        [
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 0, "len": 9291},
            {"op": "zero", "file": "batchconsumequeue/Inner/0/00000000000000000000", "at": 46, "len": 200},
        ],
    ),
    "a message with the greatest queue offset that there is is salvaged": (
        "retry-497-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 12612, "hex": "7fffffffffffffff"}],
    ),
    "a table that holds what another should is taken from its backup, and a broker starts": (
        "retry-533-clean",
        "doctor",
        [{"op": "duplicate", "path": "config/consumerOffset.json.bak", "to": "config/delayOffset.json"}],
    ),
    "a first message into whose head bytes were put gets its times back": (
        "retry-533-clean",
        "recover --abnormal",
        [{"op": "insert", "file": "commitlog/00000000000000000000", "at": 13, "hex": "00" * 100, "keep": True}],
    ),
    "a message with a negative queue id whose place no queue lacks is left out of a salvage": (
        "retry-533-clean",
        "salvage",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 331, "hex": "ffffffff"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 339, "hex": "0000000000000003"},
        ],
    ),
    "a batch with a negative queue id whose place no queue lacks is left out of a salvage": (
        "batchcq-533-kill",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 915, "hex": "ffffffff"}],
    ),
    "the first batch of a queue gets its topic again, as its unit tells": (
        "batchcq-533-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 1802, "hex": "41"}],
    ),
    "the first batch of a queue gets its queue again, which another first one had": (
        "batchcq-533-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 915, "hex": "00000001"}],
    ),
    "a batch gets its queue again where it seemed to be the next of another": (
        "batchcq-533-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 25305, "hex": "00000001"}],
    ),
    "a batch that seems to be rolled back gets its place again": (
        "batchcq-533-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 2611, "hex": "000000cc"}],
    ),
    "the last message of a batch queue gets its queue offset again, which is less than others": (
        "batchcq-533-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 42366, "hex": "0000000000000000"}],
    ),
    "where a batch has no room for its numbers, what makes room is told": (
        "batchcq-533-kill",
        "recover --abnormal",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 1810,
                "hex": (
                    b"MSG_REGION\1DefaultRegion\2UNIQ_KEY\1FD00000000000000000000000000000229E44E0E2F2A6768308800E4\2"
                    b"CLUSTER\1DefaultCluster\2TAGS\1order-created\2KEYS\1k14 user-1 k"
                ).hex(),
            }
        ],
    ),
    "the numbers of a batch are not written over the end of another property": (
        "batchcq-533-kill",
        "recover --abnormal",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 15348,
                "hex": b"MSG_REGION\1DefaultRegion\2".hex(),
            }
        ],
    ),
    "a record that comes back out of a second copy of its segment is not told as lost": (
        "ext-533-clean",
        "recover --abnormal",
        [
            {
                "op": "duplicate",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000065536",
            },
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 20512, "hex": "000000000000000b"},
        ],
    ),
    "the batches of another log, whose places others have, are told by all of their places": (
        "batchcq-533-kill",
        "recover",
        [
            {
                "op": "graft",
                "base": "batchcq-533-clean",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000065536",
            }
        ],
    ),
    "a message that is no batch does not keep the numbers of one": (
        "batchcq-533-kill",
        "recover --normal",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 46672,
                "hex": (
                    b"INNER_BASE\x019\2MSG_REGION\1DefaultRegion\2UNIQ_KEY\1FD00000000000000000000000000000229E44E0E2F2A"
                    b"67682EA0043\2CLUSTER\1DefaultCluster\2WAIT\1true\2TRACE_ON\1true\2INNER_NUM\x012\2"
                ).hex(),
            }
        ],
    ),
    "units of a batch queue behind empty ones tell what stood in the log": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {"op": "zero", "file": "batchconsumequeue/Inner2/1/00000000000000000460", "at": 0, "len": 46},
            {"op": "excise", "file": "commitlog/00000000000000000000", "at": 40448, "len": 276, "keep": True},
        ],
    ),
    "units of a batch queue behind empty ones tell a salvage what stood in the log": (
        "batchcq-533-clean",
        "salvage",
        [
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 0, "len": 1916},
            {
                "op": "swap",
                "path": "batchconsumequeue/Inner/0/00000000000000000000",
                "to": "batchconsumequeue/Inner/0/00000000000000000460",
            },
        ],
    ),
    "a rebuild notes a negative store time as a broker does": (
        "txn-533-kill",
        "rebuild index",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 13239, "hex": "8000000000000000"}],
    ),
    "a light queue whose name is damaged gets it again, and no other property makes room": (
        "special-550-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 5296, "hex": "58"}],
    ),
    "light queues keep their order where an offset of one is damaged": (
        "special-550-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 15442, "hex": "58"}],
    ),
    "a light queue whose name ran into the next property is parted from it": (
        "special-550-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000032768", "at": 30370, "hex": "41"}],
    ),
    "the last message of a light queue gets its offset there again": (
        "special-550-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000065536", "at": 18760, "hex": "30"}],
    ),
    "the first message of a queue that is looked at gets its queue offset again, which jumps back": (
        "mixed-550-clean",
        "recover",
        [{"op": "write", "file": "commitlog/00000000000000131072", "at": 26386, "hex": "0000000000000001"}],
    ),
    "a batch with the greatest queue offset that there is does not end its queue before it began": (
        "batchcq-533-clean",
        "rebuild all",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 33094, "hex": "7fffffffffffffff"}],
    ),
    "what a missing file of a queue told is told between its neighbours, however short the log has become": (
        "ext-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "consumequeue/Ext/1/00000000000000000400"},
            {"op": "resize", "file": "commitlog/00000000000000000000", "size": 1},
        ],
    ),
    "4.9, which knows no batches, is foretold on them": ("batchcq-533-kill", "recover --as-broker 4.9", []),
    "a record that ends in a CRC property and has another name in front of it is given up": (
        "propcrc-forced-533-clean",
        "recover",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 17724, "hex": "5f5f435243333223"},
        ],
    ),
    "what has another name in front of its CRC property is imported as it is, and told": (
        "propcrc-forced-533-clean",
        "export | import",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 17724, "hex": "5f5f435243333223"},
        ],
    ),
    "a batch that is told by its unit to lie elsewhere in its queue is salvaged there, as is told": (
        "batchcq-533-clean",
        "salvage",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 30639,
                "hex": (
                    "494e4e45525f42415345013230024d53475f524547494f4e0144656661756c74526567696f6e0255"
                    "4e49515f4b4559014644303030303030303030303030303030303030303030303030303030303032"
                    "32354539344530453246324136373637413736343030373802434c55535445520144656661756c74"
                    "436c7573746572025741495401747275650254524143455f4f4e017472756502494e4e45525f4e55"
                    "4d013302"
                ),
            },
        ],
    ),
    "a batch with the properties of another message is salvaged with what finds room, as is told": (
        "batchcq-533-kill",
        "salvage",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 1810,
                "hex": (
                    "4d53475f524547494f4e0144656661756c74526567696f6e02554e49515f4b455901464430303030"
                    "30303030303030303030303030303030303030303030303030323239453434453045324632413637"
                    "3638333038383030453402434c55535445520144656661756c74436c75737465720254414753016f"
                    "726465722d63726561746564024b455953016b313420757365722d31206b34340257414954017472"
                    "756502"
                ),
            },
        ],
    ),
    "consumer offsets that name no group do not keep a broker from starting": (
        "retry-497-clean",
        "doctor",
        [{"op": "write", "file": "config/consumerOffset.json", "at": 112, "hex": "41"}],
    ),
    "a broker that can read neither a table nor its backup is foretold not to start": (
        "mixed-533-clean",
        "doctor",
        [
            {"op": "write", "file": "config/topics.json", "at": 0, "hex": "5b"},
            {"op": "write", "file": "config/topics.json.bak", "at": 0, "hex": "5b"},
        ],
    ),
    "a table that is unreadable twice and that no broker loads keeps none from starting": (
        "mixed-533-clean",
        "doctor",
        [
            {"op": "duplicate", "path": "checkpoint", "to": "config/messageRequestMode.json"},
            {"op": "duplicate", "path": "checkpoint", "to": "config/messageRequestMode.json.bak"},
        ],
    ),
    "a message that ends in parts of others gets no end with control characters": (
        "txn-497-clean",
        "salvage",
        [
            {"op": "excise", "file": "commitlog/00000000000000000000", "at": 1769, "len": 4096, "keep": False},
        ],
    ),
    "a whole message in front of one whose head stands keeps its own end": (
        "mixed-497-kill",
        "recover",
        [
            {"op": "excise", "file": "commitlog/00000000000000131072", "at": 23487, "len": 4096, "keep": False},
        ],
    ),
    "a batch whose queue id is another is salvaged into the queue whose unit leads to it": (
        "batchcq-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 14026, "hex": "00000001"}],
    ),
    "a message of a batch queue whose queue offset is too far on is salvaged into its place": (
        "batchcq-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 23278, "hex": "0000000000000057"}],
    ),
    "a batch whose queue offset is that of the first is salvaged into its place": (
        "batchcq-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 40468, "hex": "0000000000000000"}],
    ),
    "the first message of a batch queue with the id of another queue is salvaged into its place": (
        "batchcq-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 12, "hex": "00000001"}],
    ),
    "a message with the light queues of another is salvaged with those whose units lead to it": (
        "special-550-kill",
        "salvage",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 271,
                "hex": (
                    "6e6f7465017ac3bc7269636820f09f9a80203336024b455953016b34206b3302554e49515f4b455901"
                    "334233344331383139383546313642423235333737413831373241413745384402494e4e45525f4d55"
                    "4c54495f444953504154434801254c4d5125616c7068612c254c4d51256265746102494e4e45525f4d"
                    "554c54495f51554555455f4f464653455401362c3302"
                ),
            },
        ],
    ),
    "the last batch of a queue with the id of another is put back where its unit leads to it": (
        "batchcq-533-clean",
        "recover",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 39596, "hex": "00000000"}],
    ),
    "the last message of a batch queue with the id of another is salvaged where its unit leads to it": (
        "batchcq-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 40460, "hex": "00000000"}],
    ),
    "a batch whose system flag is damaged is salvaged with the one that its body shows, as is told": (
        "batchcq-533-clean",
        "salvage",
        [
            {
                "op": "copy",
                "file": "commitlog/00000000000000000000",
                "at": 29344,
                "len": 16,
                "to": "commitlog/00000000000000000000",
                "to_at": 9728,
            },
        ],
    ),
    "light queues that are written anew leave the keys of their message, where there is room but for a separator": (
        "special-497-clean",
        "recover",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 511,
                "hex": "494e4e45525f4d554c54495f444953504154434801254c4d5125616c",
            },
        ],
    ),
    "a message whose flag is that of another kind and transaction gets flag and place at once": (
        "special-533-clean",
        "recover",
        [{"op": "write", "file": "commitlog/00000000000000065536", "at": 11438, "hex": "0000009e"}],
    ),
    "lost messages between those that are salvaged and the first unit that is left are told": (
        "special-550-kill",
        "salvage",
        [
            {"op": "delete", "path": "consumequeue/%LMQ%alpha/0/00000000000000000000"},
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 2140, "len": 30628},
            {"op": "zero", "file": "commitlog/00000000000000032768", "at": 0, "len": 32768},
            {"op": "zero", "file": "commitlog/00000000000000065536", "at": 0, "len": 32768},
            {"op": "zero", "file": "commitlog/00000000000000098304", "at": 0, "len": 32768},
        ],
    ),
    "a table with a value of a wrong type, as in its backup, keeps a broker from starting": (
        "mixed-533-clean",
        "doctor",
        [
            {"op": "write", "file": "config/topics.json", "at": 165, "hex": "22616c7322"},
            {"op": "write", "file": "config/topics.json.bak", "at": 165, "hex": "22616c7322"},
        ],
    ),
    "entries for a key that makes room for light queues do not stay in the index": (
        "special-497-clean",
        "recover",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 490, "hex": "780179027a01"}],
    ),
    "a message that 5.5 puts at the queue offset before its own is not told as gone": (
        "special-550-kill",
        "doctor",
        [
            {"op": "zero", "file": "consumequeue/Six/0/00000000000000000000", "at": 180, "len": 20},
            {"op": "delete", "path": "commitlog/00000000000000000000"},
            {"op": "delete", "path": "commitlog/00000000000000032768"},
        ],
    ),
    "of several ways to join a record into which bytes were put that one is taken which the index tells": (
        "many-533-clean",
        "recover --abnormal",
        [
            {
                "op": "insert",
                "file": "commitlog/00000000000000000000",
                "at": 12076,
                "hex": "58ef8bb5d3" + "41" * 195,
                "keep": True,
            }
        ],
    ),
    "or that one which says what the records behind it say": (
        "ext-533-clean",
        "recover --abnormal",
        [
            {
                "op": "insert",
                "file": "commitlog/00000000000000000000",
                "at": 38511,
                "hex": "540d5d5bb0" + "41" * 195,
                "keep": True,
            }
        ],
    ),
    "two messages in a row with damaged numbers go back to the places whose units lead to them": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 10825, "hex": "0000000000000028"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 14899, "hex": "0000000000000029"},
        ],
    ),
    "without units they go back to those that the message behind them leaves": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 10825, "hex": "0000000000000009"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 14899, "hex": "0000000000000007"},
        ],
    ),
    "so do the first two of a queue": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 3253, "hex": "0000000000000007"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 6617, "hex": "0000000000000009"},
        ],
    ),
    "the last two of a queue, ahead of it though nothing of the log is lost, take its next places": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "write", "file": "commitlog/00000000000000262144", "at": 24444, "hex": "000000000000003c"},
            {"op": "write", "file": "commitlog/00000000000000262144", "at": 25947, "hex": "0000010000000000"},
        ],
    ),
    "the first message of a log that says to be of before 1970 gets the time of the next": (
        "ext-497-kill",
        "recover --abnormal",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 56, "hex": "fffffe5e043be2f1"}],
    ),
    "it does so in a new store": (
        "ext-497-kill",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 56, "hex": "fffffe5e043be2f1"}],
    ),
    "a lost message whose own unit is wrong keeps the places in light queues that their units tell": (
        "special-533-clean",
        "recover",
        [
            {
                "op": "swap",
                "path": "consumequeue/Six/0/00000000000000000000",
                "to": "consumequeue/Six/0/00000000000000000200",
            },
            {"op": "duplicate", "path": "commitlog/00000000000000032768", "to": "commitlog/00000000000000000000"},
        ],
    ),
    "units of another queue before the first message of one do not stay": (
        "special-550-kill",
        "recover --abnormal",
        [
            {
                "op": "swap",
                "path": "consumequeue/%RETRY%" + "g" * 121 + "/1/00000000000000000200",
                "to": "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/1/00000000000000000000",
            },
            {"op": "delete", "path": "commitlog/00000000000000000000"},
        ],
    ),
    "a batch that says the place of the first of another queue gets the one that its own queue lacks": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 12, "hex": "00000001"},
        ],
    ),
    "a batch that says the place of the first of another queue gets the one that its own queue lacks, in a new store": (
        "batchcq-533-clean",
        "salvage",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 12, "hex": "00000001"},
        ],
    ),
    "the last message of a queue, which says a place that is taken, gets the next": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 40468, "hex": "0000000000000000"},
        ],
    ),
    "the last message of a queue, which says a place that is taken, gets the next, in a new store": (
        "batchcq-533-clean",
        "salvage",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 40468, "hex": "0000000000000000"},
        ],
    ),
    "a batch behind the first places of another queue, which leads on to its next, gets its own back": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 3956, "hex": "00000000"},
        ],
    ),
    "a batch behind the first places of another queue, which leads on to its next, gets its own back, in a new store": (
        "batchcq-533-clean",
        "salvage",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 3956, "hex": "00000000"},
        ],
    ),
    "the last batch of a queue that says another queue is put where its offset is due, in a new store": (
        "batchcq-533-clean",
        "salvage",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 39596, "hex": "00000000"},
        ],
    ),
    "a batch whose head says another offset than its properties keeps the one that is due": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 38101, "hex": "0000000000000007"},
        ],
    ),
    "a batch whose head says another offset than its properties keeps the one that is due, in a new store": (
        "batchcq-533-clean",
        "salvage",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 38101, "hex": "0000000000000007"},
        ],
    ),
    "of two messages that say to be the first of a queue one goes to the queue that lacks its first": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 12, "hex": "00000001"},
        ],
    ),
    "a message that fits two places gets the one that is left once another has the other": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 8822, "hex": "00000000"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 8830, "hex": "0000000000000003"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 8264, "hex": "0000010000000000"},
        ],
    ),
    "a message that no queue leads to, as two may have had one place, is told": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 8822, "hex": "00000000"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 8830, "hex": "0000000000000001"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 5391, "hex": "0000010000000000"},
        ],
    ),
    "batches that get no unit have none in a queue that is made again": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 10584, "hex": "00000001"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 10592, "hex": "000000000000000a"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 9434, "hex": "0000010000000000"},
        ],
    ),
    "batches whose places cannot be right get others in a new store": (
        "batchcq-533-clean",
        "salvage",
        [
            {"op": "delete", "path": "batchconsumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 10584, "hex": "00000001"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 10592, "hex": "000000000000000a"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 9434, "hex": "0000010000000000"},
        ],
    ),
    "a message whose place in a light queue is damaged gets that again and keeps its own": (
        "special-497-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 536, "hex": "31"},
        ],
    ),
    "a message whose place in a light queue is damaged gets that again and keeps its own, in a new store": (
        "special-497-clean",
        "salvage",
        [
            {"op": "delete", "path": "consumequeue"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 536, "hex": "31"},
        ],
    ),
    "a CRC property is not written over the end of another one": (
        "propcrc-forced-533-clean",
        "recover --abnormal",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 26738,
                "hex": "4b455953016b3139206b3502",
            }
        ],
    ),
    "a unit of the timer that cancels a message is named where its own message is lost": (
        "timer-550-clean",
        "recover",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 8859, "hex": "ff"}],
    ),
    "a place whose unit leads to a lost message is not given to another by the next repair": (
        "mixed-533-clean",
        "recover --abnormal",
        [
            {
                "op": "graft",
                "base": "mixed-550-kill",
                "path": "commitlog/00000000000000262144",
                "to": "commitlog/00000000000000065536",
            },
            {
                "op": "copy",
                "file": "commitlog/00000000000000196608",
                "at": 46080,
                "len": 512,
                "to": "commitlog/00000000000000262144",
                "to_at": 0,
            },
        ],
    ),
    "messages that no place was found for behind a hole get none once it is bridged": (
        "mixed-497-kill",
        "recover",
        [
            {
                "op": "graft",
                "base": "mixed-533-clean",
                "path": "commitlog/00000000000000196608",
                "to": "commitlog/00000000000000065536",
            },
            {"op": "write", "file": "commitlog/00000000000000196608", "at": 738, "hex": "ff"},
        ],
    ),
    "messages of another log that light queues have twice stay as they are in the next repair": (
        "special-497-clean",
        "recover",
        [
            {
                "op": "graft",
                "base": "special-533-clean",
                "path": "commitlog/00000000000000032768",
                "to": "commitlog/00000000000000032768",
            }
        ],
    ),
    "a message whose address is damaged has its places in light queues in a new store": (
        "special-533-clean",
        "salvage",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 10584, "hex": "39"}],
    ),
    "a message that is cut off is not told under the number of one that is kept": (
        "propcrc-forced-533-clean",
        "recover --abnormal --cut",
        [{"op": "write", "file": "commitlog/00000000000000065536", "at": 20932, "hex": "0000000000000006"}],
    ),
    "a place that leads to a placeholder is lost, though a record of another log claims it": (
        "mixed-497-clean",
        "recover --abnormal",
        [
            {
                "op": "graft",
                "base": "mixed-533-kill",
                "path": "commitlog/00000000000000196608",
                "to": "commitlog/00000000000000131072",
            }
        ],
    ),
    "a copy of a message that differs from the one that is kept is told": (
        "timer-550-clean",
        "recover --abnormal",
        [
            {
                "op": "duplicate",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000000000.bak",
            },
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 32, "len": 16},
        ],
    ),
    "a first segment whose file held another is lost, not expired": (
        "multipath-497-kill",
        "recover",
        [
            {
                "op": "duplicate",
                "path": "commitlog-b/00000000000000065536",
                "to": "commitlog-a/00000000000000000000",
            },
            {
                "op": "graft",
                "base": "multipath-533-clean",
                "path": "commitlog-b/00000000000000196608",
                "to": "commitlog-b/00000000000000065536",
            },
        ],
    ),
    "a new store tells what a first segment whose file held another had": (
        "multipath-497-kill",
        "salvage",
        [
            {
                "op": "duplicate",
                "path": "commitlog-b/00000000000000065536",
                "to": "commitlog-a/00000000000000000000",
            },
            {
                "op": "graft",
                "base": "multipath-533-clean",
                "path": "commitlog-b/00000000000000196608",
                "to": "commitlog-b/00000000000000065536",
            },
        ],
    ),
    "an index is compared with a log whose segment gets its name again": (
        "txn-497-clean",
        "recover --normal",
        [
            {
                "op": "write",
                "file": "index/20261121013642072",
                "at": 0,
                "hex": "8000000000000000",
            },
            {
                "op": "rename",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000131072",
            },
        ],
    ),
    "what timer units of a renamed log say is named as left": (
        "timer-533-kill",
        "recover --abnormal --cut",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 6929,
                "hex": (
                    "54494d45525f4f55545f4d530131373935323235393639303030024d53475f524547494f4e0144656661756c74"
                    "526567696f6e0254494d45525f44454c495645525f4d53013137393532323539363934323302554e49515f4b45"
                    "590146443030303030303030303030303030303030303030303030303030303030323044424634453045324632"
                    "4136373636364436343030304302434c55535445520144656661756c74436c757374657202544147530174696d"
                    "6572024b4559530174696d657232025741495401747275650254524143455f4f4e0174727565025245414c5f54"
                    "4f5049430154696d6564025245414c5f514944013002"
                ),
            },
            {
                "op": "rename",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/0000000000000000000",
            },
        ],
    ),
    "a segment that ends a byte behind a record is bridged from that record on": (
        "many-533-clean",
        "recover --abnormal",
        [
            {
                "op": "zero",
                "file": "commitlog/00000000000000000000",
                "at": 14038,
                "len": 304,
            },
            {
                "op": "resize",
                "file": "commitlog/00000000000000131072",
                "size": 10333,
            },
        ],
    ),
    "a copy of a message with damaged properties that are kept is told": (
        "special-533-clean",
        "recover --normal",
        [
            {
                "op": "duplicate",
                "path": "commitlog/00000000000000065536",
                "to": "commitlog/00000000000000032768",
            },
            {
                "op": "write",
                "file": "commitlog/00000000000000065536",
                "at": 19058,
                "hex": "d1",
            },
        ],
    ),
    "messages of another log have no units where earlier messages that were not read have theirs": (
        "mixed-550-kill",
        "recover",
        [
            {
                "op": "graft",
                "base": "mixed-533-kill",
                "path": "commitlog/00000000000000131072",
                "to": "commitlog/00000000000000131072",
            }
        ],
    ),
    "messages of another log that follow each other keep their places, whatever units lead to them": (
        "mixed-533-clean",
        "recover --normal",
        [
            {
                "op": "graft",
                "base": "mixed-533-kill",
                "path": "commitlog/00000000000000131072",
                "to": "commitlog/00000000000000131072",
            }
        ],
    ),
    "a new store is examined without the settings that name the old log": (
        "multipath-497-kill",
        "doctor",
        [
            {
                "op": "graft",
                "base": "multipath-533-clean",
                "path": "commitlog-a/00000000000000262144",
                "to": "commitlog-a/00000000000000000000",
            }
        ],
    ),
    "a message whose number of a queue is the largest makes no table that brokers cannot read": (
        "many-497-clean",
        "export | import",
        [{"op": "write", "file": "commitlog/00000000000000114688", "at": 1484, "hex": "7fffffff"}],
    ),
    "a message that states the last address of all beside a garbled page is one that lies elsewhere": (
        "txn-533-clean",
        "recover --normal",
        [
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 5120, "len": 512},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 34062, "hex": "7ffffffffffffffe"},
        ],
    ),
    "after a clean stop a segment that gets its name back is examined": (
        "mixed-550-clean",
        "recover",
        [
            {
                "op": "swap",
                "path": "commitlog/00000000000000262144",
                "to": "commitlog/00000000000000000000",
            },
            {
                "op": "insert",
                "file": "commitlog/00000000000000262144",
                "at": 9105,
                "hex": "00" * 512,
                "keep": True,
            },
        ],
    ),
    "an impossible queue is told in the folder in which its topic has its queues": (
        "batchcq-533-clean",
        "rebuild all",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 1053, "hex": "ffffffff"}],
    ),
    "a queue none of whose messages states a possible offset is told": (
        "batchcq-533-clean",
        "rebuild all",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 44869, "hex": "00000007"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 44877, "hex": "7fffffffffffffff"},
        ],
    ),
    "a negative offset of the second batch does not hide the queue": (
        "batchcq-533-clean",
        "rebuild all",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 3078, "hex": "8000000000000000"}],
    ),
    "the last message of a queue keeps its place if the one before it states another queue": (
        "batchcq-533-clean",
        "rebuild queues",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 44548, "hex": "7fffffff"}],
    ),
    "a record with a damaged address is put back once": (
        "txn-533-clean",
        "recover --abnormal",
        [
            {
                "op": "copy",
                "file": "commitlog/00000000000000000000",
                "at": 5632,
                "len": 64,
                "to": "commitlog/00000000000000000000",
                "to_at": 30208,
            },
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 26182, "hex": "000000000000cc54"},
        ],
    ),
    "a broker that keeps a damaged first unit of a file of a batch queue loses its message": (
        "batchcq-533-clean",
        "recover --as-broker 5.3",
        [{"op": "write", "file": "batchconsumequeue/Inner2/0/00000000000000000460", "at": 8, "hex": "80000000"}],
    ),
    "a broker that keeps a unit of no message in a batch queue loses its message": (
        "batchcq-533-clean",
        "recover --as-broker 5.5",
        [{"op": "write", "file": "batchconsumequeue/Inner2/0/00000000000000000460", "at": 36, "hex": "ffff"}],
    ),
    "a first segment whose file held another is told as lost where the log is cut, too": (
        "mixed-497-clean",
        "recover --abnormal --cut",
        [
            {
                "op": "graft",
                "base": "mixed-550-kill",
                "path": "commitlog/00000000000000262144",
                "to": "commitlog/00000000000000000000",
            }
        ],
    ),
    "of a lost first segment the messages are told whose units are lost, too": (
        "mixed-497-clean",
        "recover --abnormal --cut",
        [
            {
                "op": "graft",
                "base": "mixed-550-kill",
                "path": "commitlog/00000000000000262144",
                "to": "commitlog/00000000000000000000",
            },
            {"op": "zero", "file": "consumequeue/log-x/0/00000000000000000000", "at": 400, "len": 40},
            {"op": "zero", "file": "consumequeue/log-x/0/00000000000000000000", "at": 620, "len": 40},
        ],
    ),
    "messages of a lost first segment are told beside those that are cut off": (
        "mixed-497-clean",
        "recover --abnormal --cut",
        [
            {
                "op": "graft",
                "base": "mixed-550-kill",
                "path": "commitlog/00000000000000262144",
                "to": "commitlog/00000000000000000000",
            },
            {"op": "zero", "file": "commitlog/00000000000000065536", "at": 30000, "len": 600},
        ],
    ),
    "a message whose queue offset no queue can have is left out of a new store, and told": (
        "retry-533-clean",
        "export | import",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 8064,
                "len": 16,
                "to": "commitlog/00000000000000000000",
                "to_at": 18944,
            }
        ],
    ),
    "one impossible queue does not keep the other messages out of a new store": (
        "mixed-533-clean",
        "export | import",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 347, "hex": "ffffffff"}],
    ),
    "offsets between what is left of a queue and its first message are told with a lost first segment": (
        "mixed-497-clean",
        "recover --abnormal --cut",
        [
            {
                "op": "graft",
                "base": "mixed-550-kill",
                "path": "commitlog/00000000000000262144",
                "to": "commitlog/00000000000000000000",
            },
            {"op": "zero", "file": "consumequeue/OrderEvents/2/00000000000000000000", "at": 80, "len": 320},
        ],
    ),
    "units between what is left of a queue and its first message are filled at once": (
        "mixed-497-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "commitlog/00000000000000000000"},
            {"op": "zero", "file": "consumequeue/OrderEvents/2/00000000000000000000", "at": 80, "len": 320},
        ],
    ),
    "each copy of a message that differs from the one that is kept is told": (
        "mixed-533-kill",
        "recover --normal",
        [
            {
                "op": "graft",
                "base": "mixed-550-clean",
                "path": "commitlog/00000000000000131072",
                "to": "commitlog/00000000000000000000",
            },
            {"op": "swap", "path": "commitlog/00000000000000131072", "to": "commitlog/00000000000000065536"},
        ],
    ),
    "a record whose own address and system flag are damaged gets both back at once": (
        "txn-533-clean",
        "recover --abnormal",
        [
            {
                "op": "copy",
                "file": "commitlog/00000000000000000000",
                "at": 8192,
                "len": 16,
                "to": "commitlog/00000000000000000000",
                "to_at": 23264,
            }
        ],
    ),
    "so does the first record of a log": (
        "txn-533-clean",
        "recover",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 28, "hex": "00005cc00000000100000001"},
        ],
    ),
    "a record whose own address and store time are damaged gets both back at once": (
        "txn-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 17137, "hex": "00005cc000000001"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 17165, "hex": "0000000000000001"},
        ],
    ),
    "so does one that seems to be stored later than all others": (
        "txn-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 33552, "hex": "00005cc000000001"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 33580, "hex": "7fffffff00000000"},
        ],
    ),
    "a record whose own address and delay level are damaged gets both back at once": (
        "retry-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 18598, "hex": "00005cc000000001"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 18877, "hex": "58"},
        ],
    ),
    "a record whose own address and CRC property are damaged gets both back at once": (
        "propcrc-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000032768", "at": 27924, "hex": "00005cc000000001"},
            {"op": "write", "file": "commitlog/00000000000000032768", "at": 28468, "hex": "58"},
        ],
    ),
    "an inner batch whose own address and number of messages are damaged gets both back at once": (
        "batchcq-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 20023, "hex": "00005cc000000001"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 20877, "hex": "58"},
        ],
    ),
    "a new store has the message of a record whose own address and delay level are damaged": (
        "retry-533-clean",
        "salvage",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 18598, "hex": "00005cc000000001"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 18877, "hex": "58"},
        ],
    ),
    "a record whose system flag and CRC property are damaged gets both back at once": (
        "propcrc-forced-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000032768", "at": 28328, "hex": "00000001"},
            {"op": "write", "file": "commitlog/00000000000000032768", "at": 29258, "hex": "58"},
        ],
    ),
    "so does one whose CRC property lacks only its last byte": (
        "propcrc-forced-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000032768", "at": 28348, "hex": "0000000000000001"},
            {"op": "write", "file": "commitlog/00000000000000032768", "at": 29277, "hex": "58"},
        ],
    ),
    "lost consumer offsets that no message shows do not lead to a repair that has nothing to do": (
        "ext-497-kill", "doctor", [{"op": "delete", "path": "config/consumerOffset.json"}]
    ),
    "after a clean stop the whole log is read if the message before the last segments is not where its queue leads": (
        "mixed-497-clean",
        "recover",
        [
            {
                "op": "graft",
                "base": "mixed-550-clean",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000000000",
            }
        ],
    ),
    "after a clean stop the whole log is read before a message of the last segments is given up": (
        "special-550-kill",
        "recover --normal",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000000000",
                "at": 23643,
                "len": 206,
                "to": "commitlog/00000000000000065536",
                "to_at": 24852,
            }
        ],
    ),
    "a queue that is made for messages of another log has all its files, whatever is missing between them": (
        "mixed-550-clean",
        "recover --abnormal",
        [
            {
                "op": "graft",
                "base": "multipath-533-clean",
                "path": "commitlog-a/00000000000000131072",
                "to": "commitlog/00000000000000000000",
            }
        ],
    ),
    "a message whose place one of another log has is not put into the place of a lost message of another queue": (
        "mixed-533-kill",
        "recover --abnormal",
        [
            {
                "op": "graft",
                "base": "mixed-497-kill",
                "path": "commitlog/00000000000000065536",
                "to": "commitlog/00000000000000065536",
            }
        ],
    ),
    "records that seem to be whole where parts of two alike meet are put together from their own": (
        "many-533-clean",
        "recover --abnormal --cut",
        [
            {
                "op": "swap bytes",
                "file": "commitlog/00000000000000163840",
                "at": 8192,
                "len": 4096,
                "to": "commitlog/00000000000000212992",
                "to_at": 8192,
            }
        ],
    ),
    "a message to which its queue leads is not told as lost because it follows one of another log": (
        "mixed-550-kill",
        "recover",
        [
            {
                "op": "graft",
                "base": "mixed-550-clean",
                "path": "commitlog/00000000000000196608",
                "to": "commitlog/00000000000000196608",
            }
        ],
    ),
    "a record that states another address and an impossible queue offset makes no queue in a new store": (
        "txn-533-clean",
        "salvage",
        [
            {
                "op": "copy",
                "file": "commitlog/00000000000000000000",
                "at": 0,
                "len": 32,
                "to": "commitlog/00000000000000000000",
                "to_at": 6528,
            }
        ],
    ),
    "what bridges the beginning of a log has the time of the first message, not of a later one": (
        "ext-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 41857, "hex": "e1"},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 215, "hex": "02"},
        ],
    ),
    "a system flag that is put right in part is told when messages are imported": (
        "batchcq-533-kill",
        "export | import",
        [{"op": "write", "file": "commitlog/00000000000000000000", "at": 2009, "hex": "ffffff40"}],
    ),
    "messages of another log that follow each other in a queue are not taken for damaged ones": (
        "mixed-550-kill",
        "recover",
        [
            {
                "op": "graft",
                "base": "mixed-533-kill",
                "path": "commitlog/00000000000000262144",
                "to": "commitlog/00000000000000196608",
            }
        ],
    ),
    "a record whose CRC property is damaged right before a gap gets it again in the same run": (
        "propcrc-forced-533-clean",
        "recover --abnormal",
        [
            {
                "op": "copy",
                "file": "commitlog/00000000000000032768",
                "at": 10560,
                "len": 64,
                "to": "commitlog/00000000000000000000",
                "to_at": 16768,
            }
        ],
    ),
    "so does one that is alone between two gaps": (
        "propcrc-533-clean",
        "recover --abnormal",
        [
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 1270, "hex": "aa" * 60},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 2356, "hex": "78" * 71},
        ],
    ),
    "so does one that the same damage shares with the record after it": (
        "propcrc-forced-533-clean",
        "recover --abnormal",
        [
            {
                "op": "copy",
                "file": "commitlog/00000000000000065536",
                "at": 20480,
                "len": 64,
                "to": "commitlog/00000000000000065536",
                "to_at": 22208,
            }
        ],
    ),
    "a rebuild says that it checks no bodies, of which a message in its queue may be put together": (
        "many-533-clean",
        "rebuild queues",
        [{"op": "excise", "file": "commitlog/00000000000000000000", "at": 12549, "len": 368, "keep": True}],
    ),
    "a damaged unit beyond the end of the log is told as those around it": (
        "mixed-497-clean",
        "recover",
        [
            {"op": "zero", "file": "commitlog/00000000000000131072", "at": 49152, "len": 16384},
            {"op": "zero", "file": "commitlog/00000000000000196608", "at": 0, "len": 65536},
            {"op": "write", "file": "consumequeue/pay_events/1/00000000000000000400", "at": 0, "hex": "ff" * 8},
        ],
    ),
    "a unit with the size of a filler but with an address is not taken for a filler": (
        "txn-533-kill",
        "recover --abnormal --cut",
        [
            {"op": "write", "file": "consumequeue/TxOrders/1/00000000000000000000", "at": 8, "hex": "7fffffff"},
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 1220, "len": 64316},
        ],
    ),
    "of two messages with one place in a light queue only one has it in a new store": (
        "special-497-clean",
        "salvage",
        [
            {
                "op": "graft",
                "base": "special-533-clean",
                "path": "commitlog/00000000000000032768",
                "to": "commitlog/00000000000000032768",
            }
        ],
    ),
    "also if units of the light queue are lost": (
        "special-497-clean",
        "salvage",
        [
            {"op": "zero", "file": "consumequeue/%LMQ%beta/0/00000000000000000000", "at": 155, "len": 45},
            {
                "op": "graft",
                "base": "special-533-clean",
                "path": "commitlog/00000000000000032768",
                "to": "commitlog/00000000000000032768",
            },
        ],
    ),
    "a filler unit does not lead to the first message of the log": (
        "special-533-clean",
        "recover --abnormal",
        [
            {"op": "delete", "path": "consumequeue/%LMQ%alpha"},
            {"op": "excise", "file": "commitlog/00000000000000000000", "at": 1754, "len": 2048, "keep": True},
        ],
    ),
    "a unit that refers to an extension that is not there says where its message is": (
        "special-550-kill",
        "recover --normal",
        [
            {
                "op": "write",
                "file": "consumequeue/%LMQ%beta/0/00000000000000000000",
                "at": 12,
                "hex": "8000000000000000",
            }
        ],
    ),
    "a unit of an extension that was cut off with its file is named as left": (
        "ext-533-clean",
        "recover --abnormal",
        [{"op": "resize", "file": "consumequeue_ext/Ext/0/00000000000000000000", "size": 313}],
    ),
    "no record is joined with the end of another that is whole where it lies": (
        "ext-533-clean",
        "recover --normal",
        [
            {"op": "excise", "file": "commitlog/00000000000000000000", "at": 24804, "len": 1024, "keep": True},
            {"op": "write", "file": "commitlog/00000000000000000000", "at": 16384, "hex": "15" * 8192},
        ],
    ),
    "a log that has other messages at the same addresses fills no gap of this one": (
        "timer-533-kill",
        "recover --abnormal",
        [
            {"op": "zero", "file": "commitlog/00000000000000000000", "at": 7552, "len": 16},
            {
                "op": "graft",
                "base": "timer-533-clean",
                "path": "commitlog/00000000000000000000",
                "to": "commitlog/00000000000000065536",
            },
        ],
    ),
    "numbers of a batch that a damage gave to a single message do not come into a new store": (
        "batchcq-533-kill",
        "export | import",
        [
            {
                "op": "write",
                "file": "commitlog/00000000000000000000",
                "at": 46815,
                "hex": "5f4f4e017472756502494e4e45525f4e554d013202",
            }
        ],
    ),
}  # fmt: skip

RECIPES = {
    name: LawCase.from_json(json.dumps({"base": base, "repair": repair, "damages": [{"kind": "recipe", "ops": ops}]}))
    for name, (base, repair, ops) in _ROWS.items()
}
"""Cases by what must be so."""
