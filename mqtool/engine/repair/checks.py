"""The table of checks: for each code its severity and the page that ``explain`` shows."""

import dataclasses
from typing import Any

from mqtool.engine.repair.findings import Finding, Severity

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@dataclasses.dataclass(frozen=True)
class Check:
    """What one code stands for."""

    severity: Severity
    title: str
    cause: str
    remedy: str


def finding(code: str, message: str, **facts: Any) -> Finding:
    """Return a finding of the check with this code."""
    return Finding(code, CHECKS[code].severity, message, **facts)


_DAMAGED_LOG = (
    "Copy the whole store before anything else, and do not start a broker on the only copy: a recovery that reaches "
    "this place ends the log here and deletes all later segments. A clean start reads only the last segments and "
    "may not reach it. "
)
_REST_IS_READABLE = (
    "`mqtool recover` bridges the place with placeholders, so that a broker keeps all messages after it, and "
    "`mqtool salvage` copies what is readable into a new store. What is damaged cannot be restored from this store: "
    "get it from a slave, a backup or the producers."
)
_REBUILD = (
    "With the broker stopped, `mqtool recover --abnormal` completes and corrects queues and index from the whole "
    "log and keeps the queue offsets of lost messages; `mqtool rebuild all` builds both from scratch (run it after "
    "recover if verify reports an error in the log, LOG-..). `mqtool undo` reverts either. A broker does this too "
    "when the folders are gone, but it cuts the log at the first record that it cannot read, and RocketMQ 5.4 and "
    "later read only the last ten segments."
)
_RENAME = "Move it out of the folder, to another place, while the broker is stopped. "


CHECKS: dict[str, Check] = {
    # The commit log.
    "LOG-MISSING": Check(
        ERROR,
        "The store has no commit log.",
        "The folder commitlog is missing. The log may be elsewhere (storePathCommitLog, several folders, or a "
        "DLedger store), or it was deleted. A broker started without its log deletes the queues as well.",
        "Look for storePathCommitLog in broker.conf and pass the file with -c. If the log is gone, no message can "
        "be recovered from this store: restore it from a backup or a slave before any broker is started.",
    ),
    "LOG-START": Check(
        NOTE,
        "The log starts later than queues and index: retention may not be the reason.",
        "Retention deletes the oldest segments (after 72 hours, or when the disk is full) and then the queue and "
        "index files that refer only to them. Here such files are left over, so either the broker stopped between "
        "the two steps, or somebody deleted the first segments.",
        "If nobody deleted segments by hand, there is nothing to do: the next retention removes these files. "
        "Otherwise move the segments back from where they are now, with their old names.",
    ),
    "LOG-STRAY": Check(
        WARNING,
        "Something in the folder of the commit log is not a segment: a broker refuses to start.",
        "Every file there must be as long as a segment and have a name of 20 digits. Editors, copy tools and file "
        "managers leave other files (.swp, .DS_Store, partial copies). RocketMQ 4.9 also refuses to start if there "
        "is a folder among the segments, even the file system's own lost+found; 5.3 skips folders. A link that leads "
        "nowhere, because a disk is not mounted, is an empty file to a broker.",
        "If it is a link with the name of a segment, mount the disk that it leads to, or restore the file there: "
        "repairs refuse to proceed without its messages until you remove the link. "
        + _RENAME
        + "Brokers never read it. lost+found comes back with the next file system check: before you start a 4.9 "
        "broker, mount the disk one folder higher.",
    ),
    "LOG-EMPTY-FILE": Check(
        WARNING,
        "The last segment is an empty file.",
        "The machine stopped, or the disk was full, just after the file was created. RocketMQ 5.1.3 and later "
        "delete such a file when they start; earlier versions refuse to start.",
        "Delete the empty file while the broker is stopped. If queues also point beyond the end of the log "
        "(QUEUE-BEYOND), the file had content once: look for it in a backup first.",
    ),
    "LOG-FILE-SIZE": Check(
        ERROR,
        "A segment is shorter or longer than it should be: a broker refuses to start.",
        "All segments have the same length, 1 GiB by default (mappedFileSizeCommitLog). A shorter one was truncated "
        "by an incomplete copy, a full disk or a damaged file system; what was cut off is lost. The expected length "
        "is inferred from the names and lengths of the other segments, unless -c or --set gives it.",
        "Copy the segment again from its source if there is one. If only the unused end is missing, `truncate -s "
        "BYTES` restores the length with zeros. If every segment is reported, give the right size: `--set "
        "mappedFileSizeCommitLog=BYTES`.",
    ),
    "LOG-NAME": Check(
        ERROR,
        "A segment's name is not the address of its first byte.",
        "Names are multiples of the segment size, in 20 digits. A renamed or copied file contains messages that "
        "claim another address; brokers sort by name and find nothing where queues point.",
        "`mqtool recover` renames each segment as its records say, and moves duplicates out. `mqtool dump commitlog "
        "-s FILE --limit 1` shows what the first message says (physical_offset).",
    ),
    "LOG-GAP": Check(
        ERROR,
        "A segment between two others is missing: its messages are lost.",
        "A file was deleted or not copied. Brokers only write a line to their log about it; queue units for the "
        "missing part point to nothing.",
        "Find the missing file (its name is the expected address) in a backup, on a slave, or where the store was "
        "copied from. " + _REST_IS_READABLE,
    ),
    "LOG-MAGIC": Check(
        ERROR,
        "There are bytes between two messages that are not a record.",
        "Each record starts with its size and a magic code. Here the code is wrong: a page was lost or overwritten, "
        "or the head of a record or of a blank record was damaged. RocketMQ 4.x also mistakes the records of 5.1 "
        "and later for this.",
        _DAMAGED_LOG + _REST_IS_READABLE,
    ),
    "LOG-SIZES": Check(
        ERROR,
        "The sizes in a record contradict each other.",
        "A record's total size must be the sum of its head, body, topic and properties. One of these numbers is "
        "damaged. A 4.9 broker that reads a huge total size fails with an OutOfMemoryError while it loads the store.",
        _DAMAGED_LOG + "`mqtool get OFFSET --hex` shows the record field by field. " + _REST_IS_READABLE,
    ),
    "LOG-BLANK": Check(
        ERROR,
        "The record that fills the end of a segment is wrong or missing.",
        "When a message does not fit, a broker writes eight bytes, the space left and a magic code, and continues "
        "in the next segment. With a wrong blank record a recovery ends the log here; a message whose magic code "
        "was turned into that of a blank record hides everything after it in its segment.",
        _DAMAGED_LOG + _REST_IS_READABLE,
    ),
    "LOG-CRC": Check(
        ERROR,
        "The body of a message is not the one that was stored.",
        "The record contains a CRC-32 of the body, which the body no longer matches: bytes changed on disk, in "
        "memory or during a copy, or the stored CRC itself did. Consumers still get the message, because brokers "
        "check the CRC only during recovery.",
        _DAMAGED_LOG + "`mqtool get OFFSET` shows what is left of the message. " + _REST_IS_READABLE,
    ),
    "LOG-PROPERTY-CRC": Check(
        ERROR,
        "A record does not match its CRC property, or lost it.",
        "With enabledAppendPropCRC (since 5.2) each record ends with a CRC of everything before it, including "
        "flags, topic and properties, which the body's CRC does not cover. Only brokers with forceVerifyPropCRC "
        "check it, and these cut the log here.",
        "Copy the whole store before anything else, and do not start a broker with forceVerifyPropCRC on the only "
        "copy. " + _REST_IS_READABLE,
    ),
    "LOG-POSITION": Check(
        ERROR,
        "A record claims another address than the one where it is.",
        "Each record contains its own address. Brokers do not check it, but use it for the queues: after a rebuild "
        "the queue would point to a wrong place. The number is damaged, or the bytes were copied here from "
        "elsewhere (a renamed segment, writeWithoutMmap of 5.3.4 and later, a tool).",
        "Copy the whole store before anything else. Do not let a broker rebuild its queues: the existing queues may "
        "still point to the right place. `mqtool recover` puts such records where they say they belong, if nothing "
        "sound is there. " + _REST_IS_READABLE,
    ),
    "LOG-PROPERTIES": Check(
        ERROR,
        "A property that brokers parse has an invalid value.",
        "Brokers read DELAY of delayed messages and INNER_NUM and INNER_BASE of batches as numbers. Where that "
        "fails, they treat the record as invalid: a recovery ends the log there. The body's CRC does not cover "
        "properties, so nothing else shows damage to them.",
        _DAMAGED_LOG
        + "`mqtool recover` gives a delayed message the level of its queue again, and a batch the numbers that "
        "its body and its unit show; so do `mqtool salvage` and `mqtool import` in a new store.",
    ),
    "LOG-PROPERTY-TEXT": Check(
        ERROR,
        "The properties of a message are damaged.",
        "Properties are pairs of name and value between separators, not covered by the body's CRC. Here a part has "
        "no name or no separator, or is overwritten with zeros, which no broker writes: bytes changed on disk, or "
        "those of another record are there. Brokers do not check: consumers get the message, silently without tags, "
        "keys or other properties, light queues and the index no longer lead to it, and a delayed or prepared "
        "message that has lost its topic blocks those after it.",
        "Copy the whole store before anything else. `mqtool get PHYSICAL_OFFSET` shows the body, which is intact "
        "unless LOG-CRC says otherwise, and what is left of the properties: do that before a repair, which treats "
        "the message as lost. " + _REST_IS_READABLE,
    ),
    "LOG-TOPIC": Check(
        ERROR,
        "The topic of a message is one that no broker can have.",
        "A topic is text without control characters and slashes, of at most 255 bytes, not covered by the body's "
        "CRC. Here it is something else: bytes changed on disk, or those of another record are there. Brokers do "
        "not check: the message goes to a queue that no client can ask for, and is missing from its own queue. "
        "Where no folder can have that name (a zero byte, too many bytes), a broker that dispatches the message as "
        "it starts waits for half a minute, and then gives no queue unit to any message after it.",
        "Copy the whole store before anything else. `mqtool get PHYSICAL_OFFSET` shows the message, whose body is "
        "intact unless LOG-CRC says otherwise: do that before a repair, which treats the message as lost. "
        + _REST_IS_READABLE,
    ),
    "LOG-FLAG": Check(
        WARNING,
        "The system flag of a record contradicts the record.",
        "The flag says whether and how the body is compressed, and which part of a transaction the message is. The "
        "body's CRC does not cover it. With a wrong flag consumers fail to decompress the body, or take compressed "
        "bytes for the body; a prepared or rolled back transaction has queue offset 0.",
        "The body itself is intact unless LOG-CRC says otherwise: `mqtool get OFFSET --body base64` returns it as "
        "it is stored. `mqtool recover -s STORE --abnormal` rewrites the flag where the body shows what it should "
        "be, and lists what it leaves; brokers cannot correct it.",
    ),
    "LOG-FLAG-BITS": Check(
        NOTE,
        "The system flag of a record has bits that no known version sets.",
        "Eleven bits have a meaning (compression, tags, transaction, hosts, batches). Brokers and clients ignore the "
        "others; a newer version may set them, or the flag is damaged, which nothing else would show.",
        "There is nothing to do if all records of one time have them. A single record is worth a look: `mqtool get "
        "PHYSICAL_OFFSET --hex`.",
    ),
    "LOG-ENTRY": Check(
        ERROR,
        "The head of a DLedger entry does not match its position.",
        "In DLedger mode each record is part of an entry whose head contains its place, its size and its number, "
        "one more than that of the entry before. DLedger checks them when it starts and ends the log at the first "
        "that is wrong.",
        "If the group has other members that are sound, stop this one, move its data away and let it fetch the log "
        "again from the leader. mqtool can read the messages themselves in any case.",
    ),
    "LOG-QUEUE-ORDER": Check(
        ERROR,
        "The queue offsets of the messages in the log are not consecutive.",
        "Messages of one queue are numbered 0, 1, 2, .. in the order of the log. A missing number is a lost message "
        "(damage, a missing segment), or a damaged number; a number that occurs again means that queues were lost "
        "and numbering restarted (topic deleted and created again, consumequeue deleted under 5.0 to 5.3.1), or "
        "records of an earlier life of the log.",
        "Look at the other findings at the same place: they say what was lost and why. What is lost cannot be "
        "restored from this store; `mqtool recover` restores a damaged number where its queue shows it. Where "
        "numbering restarted, nothing is lost in the log, but consumers that read by offset get only one of the two "
        "messages; `mqtool find` and `dump commitlog` show both, and `mqtool salvage` creates a store with a place "
        "for each.",
    ),
    "LOG-TIME-ORDER": Check(
        WARNING,
        "A message was stored more than ten minutes before the preceding one.",
        "Store times follow the order of the log unless the machine's clock was set back, or the number is damaged. "
        "Search by time, retention of index files and the place where a recovery starts rely on the order.",
        "If the clock was set, there is nothing to do. If a single message stands out, its store time is damaged "
        "(`mqtool get OFFSET --hex`): search by time may miss messages around it. `mqtool recover -s STORE "
        "--abnormal` gives it the time of the preceding message, and lists what it leaves.",
    ),
    "LOG-TORN": Check(
        ERROR,
        "The last record of the log was not written completely.",
        "The machine or the process died while the record was being written to disk (ASYNC_FLUSH writes after the "
        "producer was answered), or what followed was lost with it. A recovery cuts the log before it.",
        "`mqtool get OFFSET --hex` shows what there is of it; copy the store first if that matters. Then start the "
        "broker: it cuts the record off. If queues point beyond it (QUEUE-BEYOND), more than this message is lost; "
        "look for a slave or a backup first.",
    ),
    "LOG-STALE": Check(
        WARNING,
        "There are whole records after the end of the log, or left over from an earlier life of the log.",
        "When a recovery cuts the log, it leaves the old bytes (all versions). Once a new message ends exactly "
        "where an old record starts, the next start adopts the old records: with old queue offsets, as duplicates. "
        "The same happens with writeWithoutMmap (5.3.4 and later).",
        "Brokers have no setting against this. While the broker is stopped, the bytes from the given place to the "
        "end of the segment may be overwritten with zeros (`dd conv=notrunc`), after a copy of the file was made.",
    ),
    "LOG-NOISE": Check(
        WARNING,
        "There are bytes after the end of the log that are not a record.",
        "They are the rest of something longer that was cut off, or damage. The next message overwrites them; until "
        "then they hide whether the log once continued.",
        "If queues point beyond the end of the log (QUEUE-BEYOND), messages were lost here: copy the store first. "
        "Otherwise there is nothing to do.",
    ),
    # Consume queues.
    "QUEUE-STRAY": Check(
        WARNING,
        "Something in the folder of a queue is not a queue file: a broker refuses to start.",
        "Every file there must have a name of 20 digits and the same length. Copy tools and editors leave other files.",
        _RENAME + "Brokers never read it.",
    ),
    "QUEUE-FILE-SIZE": Check(
        WARNING,
        "A queue file is shorter or longer than it should be: a broker refuses to start.",
        "Queue files have one length: 6,000,000 bytes by default (mappedFileSizeConsumeQueue), 13,800,000 for batch "
        "queues. The file was truncated by a copy or a full disk, or the setting was changed. The expected length "
        "is that of most files.",
        "Delete the folder of this queue or rebuild all queues. " + _REBUILD,
    ),
    "QUEUE-NAME": Check(
        WARNING,
        "The name of a queue file is not a possible position in the queue.",
        "The name is the position of the first byte in the queue, a multiple of the file length. Brokers take every "
        "unit in the file for one of another message.",
        "Rename it if its right name is known, otherwise rebuild the queues. " + _REBUILD,
    ),
    "QUEUE-GAP": Check(
        WARNING,
        "A queue file between two others is missing.",
        "It was deleted or not copied. Consumers skip the messages of the gap although the log still contains them.",
        _REBUILD,
    ),
    "QUEUE-MISSING": Check(
        WARNING,
        "Messages of the log have no unit in their queue: consumers do not get them.",
        "At the end of a queue: the broker stopped before it had dispatched the messages. 4.x and, where its "
        "recovery starts early enough, 5.x catch up when they start; 5.3.2 and later lose the first missing unit "
        "after a clean stop, and reuse its queue offset. In the middle, or for a whole queue: units or files were "
        "lost, or a broker of 5.4 or later recovered only the last ten segments and started the queue with filler.",
        "If only the ends of queues are missing, create an empty file abort if there is none, start the broker and "
        "verify again. Otherwise rebuild the queues, before new messages take the same queue offsets. " + _REBUILD,
    ),
    "QUEUE-POSITION": Check(
        WARNING,
        "A unit points to another place than that of its message.",
        "The unit is damaged, or units are at the wrong index: a broker that finds a gap still writes the next unit "
        "at the end of the queue. Consumers get another message or none.",
        _REBUILD,
    ),
    "QUEUE-LENGTH": Check(
        WARNING,
        "The size in a unit is not that of its message.",
        "The unit is damaged. Brokers read as many bytes from the log as the unit says, so consumers fail to parse "
        "what they get.",
        _REBUILD,
    ),
    "QUEUE-TAGS": Check(
        WARNING,
        "The tags code of a unit is not that of its message.",
        "The code is the Java hash of the tag, or the delivery time of a delayed message. The unit is damaged, or "
        "the tag in the log is. Consumers that filter by tag miss the message; a delayed message is delivered at "
        "another time. With delay levels of your own (messageDelayLevel) give -c broker.conf, or all delayed "
        "messages may be reported.",
        _REBUILD,
    ),
    "QUEUE-TIME": Check(
        WARNING,
        "The store time in a unit is not that of its message.",
        "Units of batch queues and of RocksDB contain the store time, for search by time. It is damaged here or in "
        "the log.",
        _REBUILD,
    ),
    "QUEUE-BATCH": Check(
        WARNING,
        "The message count in a unit is not that of its record.",
        "Topics with queue.type=BatchCQ keep several messages in one record (5.x); the unit contains their number. "
        "It is damaged here, or the property INNER_NUM of the record is.",
        _REBUILD,
    ),
    "QUEUE-EXT": Check(
        WARNING,
        "The extension of a queue does not match its units.",
        "With enableConsumeQueueExt the tags code of a unit is an address in consumequeue_ext, where tag, store "
        "time and filter bits are kept. A broker walks these units by their sizes when it starts, and drops "
        "everything after a wrong one.",
        "Messages are not affected, only filters are slower or wrong. " + _REBUILD,
    ),
    "QUEUE-TORN": Check(
        WARNING,
        "A unit was not written completely.",
        "The machine stopped while the unit was being written to disk. A broker ends the queue before it, and "
        "catches up on the messages after it from the log if its recovery starts early enough.",
        "Create an empty file abort if there is none, start the broker and verify again. If the finding persists, "
        "rebuild the queues. " + _REBUILD,
    ),
    "QUEUE-BEYOND": Check(
        ERROR,
        "A queue points beyond the end of the log: messages are lost.",
        "The log lost its end, and the queues, which are written later but flushed independently, still refer to "
        "it: a power failure with ASYNC_FLUSH, a missing last segment, or a damaged record that a recovery took for "
        "the end. When it starts, a broker cuts the queues as well, and new messages take the same queue offsets.",
        "The lost messages cannot be restored from this store. Before a broker starts, copy the store, note topic, "
        "queue and offsets from this list, and look for the messages on a slave, in a backup, or with the producers.",
    ),
    "QUEUE-DANGLING": Check(
        ERROR,
        "A unit points to a place in the log where no message of its queue starts.",
        "The message was there once and is damaged or lost: other findings are at the same physical offset. Or the "
        "unit is left over from before the log or the queue was cut (files are cut by numbers only, the bytes "
        "remain).",
        "Look at the findings at the physical offset first. If the log is sound there, the unit is left over: "
        + _REBUILD,
    ),
    "QUEUE-ROCKSDB-DAMAGED": Check(
        WARNING,
        "RocksDB refuses to open the database of the queues.",
        "With storeType=defaultRocksDB (since 5.2) queues are in a RocksDB database under consumequeue or "
        "consumequeue_rocksdb. One of its files is missing or damaged.",
        "The messages are still in the log. Copy the folder, then delete it, create an empty file abort and start "
        "the broker: it fills the database from the log, but 5.4 and later only from the last ten segments unless "
        "commitLogRecoverMaxNum is larger.",
    ),
    "QUEUE-ROCKSDB": Check(
        WARNING,
        "Queues are in RocksDB and were not checked.",
        "With storeType=defaultRocksDB (since 5.2) queues are in a RocksDB database, which mqtool reads through an "
        "optional package.",
        "`pip install 'mqtool[rocksdb]'`, then verify again.",
    ),
    # The index.
    "INDEX-STRAY": Check(
        NOTE,
        "Something in the index folder does not have the name of an index file.",
        "Names are 17 digits, a local time. Brokers skip names that are not numbers, and take a file with any other "
        "number as its name for an index file.",
        "Move it away if nobody needs it.",
    ),
    "INDEX-FILE-SIZE": Check(
        WARNING,
        "An index file is shorter or longer than the others.",
        "All have one length: 420,000,040 bytes by default (maxHashSlotNum, maxIndexNum). Brokers do not check it: "
        "a short file grows with zeros when it is mapped, and its entries that were cut off are lost.",
        "Search by key misses the lost entries; `mqtool find --key` scans the log where the index does not reach. "
        + _REBUILD,
    ),
    "INDEX-SHAPE": Check(
        WARNING,
        "It is not clear where slots end and entries start.",
        "The file does not say how many slots it has (maxHashSlotNum, maxIndexNum). Chains of entries usually show "
        "it, but not if the file or its header is damaged.",
        "Give the numbers from broker.conf with -c, or `--set maxHashSlotNum=N --set maxIndexNum=N`. If it is still "
        "reported, the file is damaged. " + _REBUILD,
    ),
    "INDEX-HEADER": Check(
        WARNING,
        "The header of an index file contradicts its entries.",
        "The header counts slots and entries and gives the range of times and addresses of the messages. After a "
        "crash it may be a little older than the entries. Brokers search only files whose times match, add the next "
        "entry where the counter says, and drop or keep the file after a crash by its end time.",
        _REBUILD,
    ),
    "INDEX-CHAIN": Check(
        WARNING,
        "An entry is not linked to the one before it in its slot.",
        "The entries of a slot form a chain from the newest to the oldest. With a wrong link search by key misses "
        "the older ones, or the link or the key hash of the entry is damaged.",
        _REBUILD,
    ),
    "INDEX-SLOT": Check(
        WARNING,
        "A slot does not refer to its newest entry.",
        "Search by key starts at the slot. Entries newer than the one it refers to, or all entries of the slot, are "
        "not found.",
        _REBUILD,
    ),
    "INDEX-ENTRY": Check(
        WARNING,
        "An entry does not belong to a key of the message it points to.",
        "The hash or the address in the entry is damaged, or the message is: its keys are in the properties, which "
        "the body's CRC does not cover. Entries are also left over where the log was cut and written again.",
        "`mqtool get PHYSICAL_OFFSET --hex` shows the message: check whether its UNIQ_KEY, KEYS and topic are what "
        "they should be. If they are, the index is at fault. " + _REBUILD,
    ),
    "INDEX-TIME": Check(
        WARNING,
        "The time in an entry is not that of its message.",
        "Entries contain seconds since the first entry of the file. Search by key within a time range may miss the "
        "message.",
        _REBUILD,
    ),
    "INDEX-MISSING": Check(
        WARNING,
        "Keys of messages have no entry: search by key does not find them.",
        "An index file is missing, or two files were created within one millisecond and overwrote each other (4.9, "
        "5.3), or a broker dropped the newest files after a crash, as it always does, and rebuilt them only from "
        "where its recovery started. A clean start never rebuilds a deleted index. With messageIndexEnable=false "
        "there is none.",
        "No message is lost, only its index entry: `mqtool find --key` scans the log where the index does not "
        "reach. " + _REBUILD,
    ),
    "INDEX-DUPLICATE": Check(
        NOTE,
        "A key of a message has two entries.",
        "A recovery dispatched the message again. Search by key returns it twice.",
        "There is nothing to do.",
    ),
    "INDEX-BEYOND": Check(
        WARNING,
        "Entries point beyond the end of the log.",
        "The log lost its end (QUEUE-BEYOND, LOG-TORN), and the index still refers to it. As soon as new messages "
        "are stored there, search by key returns wrong ones.",
        "Fix the end of the log first. " + _REBUILD,
    ),
    # Small files.
    "CHECKPOINT-MISSING": Check(
        WARNING,
        "The checkpoint is missing.",
        "It was deleted or not copied. A broker creates a new one; without it an abnormal recovery reads the whole "
        "log (5.4 and later: its last ten segments), which takes long for a large store, and deletes all index "
        "files to rebuild them.",
        "Nothing is lost. After a clean stop, just start the broker.",
    ),
    "CHECKPOINT-SIZE": Check(
        WARNING,
        "The checkpoint is not a file of 4096 bytes.",
        "A broker writes exactly one page. The file was truncated, or something else took its place.",
        "Delete it while the broker is stopped: a recovery then reads the whole log (5.4 and later: its last ten "
        "segments, unless commitLogRecoverMaxNum is larger).",
    ),
    "CHECKPOINT-ZERO": Check(
        NOTE,
        "Nothing is recorded in the checkpoint.",
        "The broker was killed before it wrote its checkpoint for the first time, or the file was overwritten with "
        "zeros. An abnormal recovery reads the whole log (5.4 and later: its last ten segments).",
        "There is nothing to do.",
    ),
    "CHECKPOINT-AHEAD": Check(
        WARNING,
        "The checkpoint is ahead of the log: a recovery may start too late.",
        "An abnormal recovery starts at the last segment that is older than the checkpoint. The log lost its end, "
        "or the clock was set back, or the file is damaged or belongs to another store. Queues and index would not "
        "be rebuilt from far enough back.",
        "Delete the file checkpoint while the broker is stopped: a recovery then reads the whole log. With 5.4 and "
        "later also set commitLogRecoverMaxNum above the number of segments.",
    ),
    "CHECKPOINT-REST": Check(
        NOTE,
        "There are bytes in the checkpoint that no known version writes.",
        "Five numbers are known up to 5.4, six since 5.5. A newer version may write more.",
        "There is nothing to do, unless the file is damaged in other places too.",
    ),
    "ABORT-FILE": Check(
        NOTE,
        "The broker was not stopped cleanly.",
        "The file abort exists while a broker runs, and stays when it is killed. The next start recovers "
        "abnormally: it checks the log from the checkpoint on and dispatches again. (abort.bak means nothing; 5.x "
        "always leaves it.)",
        "There is nothing to do if the other findings are harmless. Copy the store before the start if the log has "
        "errors.",
    ),
    "STORE-UNREAD": Check(
        WARNING,
        "A part of the store could not be read, and was not checked.",
        "This user may not read it, a link leads nowhere (a disk that is not mounted), or it is of a kind that "
        "mqtool does not read, such as the indexes, timers and transactions that RocketMQ 5.4 and later can keep in "
        "RocksDB.",
        "Run `mqtool verify` as the broker's user, with all disks of the broker mounted. Until then nothing is "
        "known about what this finding names.",
    ),
    "STORE-LIVE": Check(
        NOTE,
        "A broker is running on this store, or --live says so.",
        "It holds the lock on the file lock. In-flight writes are not checked: the ends of log, queues, index and "
        "timer.",
        "Stop the broker, or copy the store after a stop, for a complete check.",
    ),
    # The timer (5.x).
    "TIMER-MISSING": Check(
        WARNING,
        "A timer file is missing although others exist.",
        "The timer of 5.x keeps timerwheel, timerlog and config/timercheck. Without the wheel or timercheck a "
        "broker rereads only the end of the timer log, so older timer messages are not delivered.",
        "Restore the file. The messages themselves are in the log: `mqtool pull --topic rmq_sys_wheel_timer --queue "
        "0` lists them with the times they are due (TIMER_OUT_MS), so that you can send them again. Brokers have no "
        "other means.",
    ),
    "TIMER-FILE-SIZE": Check(
        WARNING,
        "A timer file has a wrong length or name.",
        "The wheel has 38,707,200 bytes, timercheck 4096, and all files of the timer log have one length "
        "(mappedFileSizeTimerLog). The file was truncated by a copy or a full disk. With a wheel or timer log of a "
        "wrong length brokers refuse to start.",
        "Restore the file. If that is not possible, see TIMER-MISSING.",
    ),
    "TIMER-UNIT": Check(
        WARNING,
        "A unit of the timer log is damaged.",
        "A unit contains its kind, the time it is due, the hash of the topic and the place of its message. One of "
        "these contradicts the message: it is delivered at a wrong time or not at all, or a cancelled one is "
        "delivered.",
        "`mqtool get PHYSICAL_OFFSET` shows the message, so that you can send it again. Brokers do not correct the "
        "unit.",
    ),
    "TIMER-CHAIN": Check(
        WARNING,
        "A unit of the timer log is not linked to the one before it in its second.",
        "The units of one second form a chain from the last to the first. Those after a wrong link are not delivered.",
        "`mqtool pull --topic rmq_sys_wheel_timer --queue 0` lists the messages with the times they are due "
        "(TIMER_OUT_MS), so that you can send them again.",
    ),
    "TIMER-SLOT": Check(
        WARNING,
        "A slot of the timer wheel does not match the timer log.",
        "Each future second has a slot that refers to its first and last unit and counts the messages. A wrong slot "
        "delivers too few, or messages of another second. After a kill the wheel may be a second older than the "
        "log; that is not reported.",
        "`mqtool pull --topic rmq_sys_wheel_timer --queue 0` lists the messages with the times they are due "
        "(TIMER_OUT_MS), so that you can send them again.",
    ),
    "TIMER-MESSAGE": Check(
        WARNING,
        "A unit of the timer log does not point to a timer message.",
        "The message is lost or damaged in the log (see the other findings there), or the unit is damaged. Nothing "
        "is delivered.",
        "Fix the log first. A lost message cannot be restored from this store.",
    ),
    "TIMER-CHECK": Check(
        WARNING,
        "timercheck says that the timer is further ahead than its files show.",
        "The file records how far the timer log was written and the timer's queue was read. With larger numbers the "
        "timer skips messages. The log or the queue lost its end, or the file is damaged or belongs to another "
        "store.",
        "Restore config/timercheck. If that is not possible, list what is due with `mqtool pull --topic "
        "rmq_sys_wheel_timer --queue 0` and make sure that it is delivered.",
    ),
    # Tables under config/.
    "CONFIG-UNREADABLE": Check(
        ERROR,
        "A table under config/ and its backup cannot be read.",
        "They were truncated or damaged, by a full disk for example, or edited by hand. A broker starts without "
        "them: topics and groups are unknown until they are created again, and consumers start anew. RocketMQ 5.4 "
        "and later also delete a file that they cannot read.",
        "Copy the file before a broker starts. The message says where reading ended; often only one place has to be "
        "corrected. The queues show topics and queue numbers (`mqtool info`); consumer offsets cannot be restored "
        "from this store.",
    ),
    "CONFIG-FROM-BACKUP": Check(
        WARNING,
        "A table under config/ is missing or cannot be read, but its backup can.",
        "The broker was stopped while it was writing (5.3.4 and later rename the old file first), or the file was "
        "damaged. A broker uses the backup, which is one change older. RocketMQ 5.4 and later delete a file that "
        "they cannot read.",
        "If the last change matters, copy both files and correct the first by hand; otherwise there is nothing to do.",
    ),
    "CONFIG-BACKUP": Check(
        NOTE,
        "The backup of a table under config/ cannot be read.",
        "The table itself is sound. The backup was damaged, or truncated by a full disk; the next change of the "
        "table rewrites it.",
        "There is nothing to do while the table is sound.",
    ),
    "CONFIG-ROCKSDB": Check(
        WARNING,
        "Topics, groups and offsets are in RocksDB and were not checked.",
        "Brokers of 5.2 and later may keep their tables in RocksDB, which mqtool reads through an optional package.",
        "`pip install 'mqtool[rocksdb]'`, then verify again.",
    ),
    "CONFIG-MISSING": Check(
        NOTE,
        "There is no topic table.",
        "The store was copied without its folder config, or the broker keeps it elsewhere. A broker that starts on "
        "it knows no topics until producers create them, if autoCreateTopicEnable allows it.",
        "Also copy config/topics.json, subscriptionGroup.json and consumerOffset.json before a broker starts on "
        "this store.",
    ),
    "CONFIG-NO-TOPIC": Check(
        WARNING,
        "There are queues of a topic that brokers do not know.",
        "The topic was deleted and its queues are left over, or topics.json is older than the queues or belongs to "
        "another store. Nobody can read the messages until the topic exists.",
        "If the topic should exist, create it again with as many queues: `mqadmin updateTopic -t TOPIC -r N -w N -b "
        "BROKER`.",
    ),
    "CONFIG-NO-QUEUE": Check(
        NOTE,
        "There are topics to which nothing was ever sent.",
        "Queues are created when the first message arrives. Brokers create some topics themselves, named after "
        "cluster and broker.",
        "There is nothing to do.",
    ),
    "CONFIG-QUEUE-COUNT": Check(
        WARNING,
        "A topic has more queues on disk than its table says.",
        "The number of queues was reduced while messages were left in the higher ones, or topics.json is older than "
        "the queues. Consumers do not read the higher queues.",
        "Raise the number of read queues until these are read: `mqadmin updateTopic -t TOPIC -r N -w M -b BROKER`.",
    ),
    "CONFIG-NO-GROUP": Check(
        NOTE,
        "A consumer group has offsets but no settings.",
        "The group was deleted and its offsets are left over, or subscriptionGroup.json is older. A broker with "
        "autoCreateSubscriptionGroup creates the settings again, with defaults, when the group comes back.",
        "There is nothing to do, unless the group had settings that matter (retries, broadcast, order).",
    ),
    "CONFIG-OFFSET": Check(
        WARNING,
        "A consumer group would continue beyond the end of its queue.",
        "Consumer offsets are larger than the queue is long: the queue or the log lost its end, the topic was "
        "created again, or consumerOffset.json is from another time. A broker corrects the consumer when it pulls, "
        "mostly to the end of the queue: it then misses messages or reads some twice.",
        "Find out why the queue is short first (QUEUE-MISSING, QUEUE-BEYOND). Then reset the group: `mqadmin "
        "resetOffsetByTime -g GROUP -t TOPIC -s TIME`.",
    ),
    "CONFIG-OFFSET-EXPIRED": Check(
        NOTE,
        "A consumer group has not yet read messages that are gone.",
        "Retention deleted them before the group read them, or the group is no longer used.",
        "Nothing can be done for these messages. The group continues at the first message that is left.",
    ),
    "CONFIG-DELAY-OFFSET": Check(
        WARNING,
        "A delay level would continue beyond the end of its queue.",
        "delayOffset.json records how far each level was delivered. The queue of the level or the log lost its end, "
        "or the file is from another time. 5.x corrects the number when it starts; 4.x uses it unchanged.",
        "Repair the queues first if they lost their ends (QUEUE-MISSING). Then `mqtool rebuild config` sets the "
        "number to the end of the queue.",
    ),
}
