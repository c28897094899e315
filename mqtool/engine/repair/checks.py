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
    "Copy the whole store before anything else, and start no broker on the only copy: a recovery that meets this "
    "place takes the log to end here and deletes every later segment. A clean start reads only the last segments "
    "and may pass by. "
)
_REST_IS_READABLE = (
    "`mqtool recover` bridges the place with placeholders, so that a broker keeps all messages behind it, and `mqtool "
    "salvage` copies what can be read into a new store. What is damaged cannot be made again from this store: take it "
    "from a slave, a backup or the producers."
)
_REBUILD = (
    "With the broker stopped, `mqtool recover --abnormal` fills up and corrects queues and index from the whole log "
    "and keeps the places of messages that are lost; `mqtool rebuild all` makes both again from nothing, after it "
    "when verify tells of an error of the log (LOG-..). `mqtool undo` takes either back. A broker does "
    "it too when the folders are gone, but cuts the log at the first record it cannot read, and RocketMQ 5.4 and "
    "later read only the last ten segments."
)
_RENAME = "Move it out of the folder, to another place, while the broker is stopped. "


CHECKS: dict[str, Check] = {
    # The commit log.
    "LOG-MISSING": Check(
        ERROR,
        "The store has no commit log.",
        "The folder commitlog is missing. The log may lie elsewhere (storePathCommitLog, several folders, or a "
        "DLedger store), or it was deleted. A broker started without its log deletes the queues as well.",
        "Look for storePathCommitLog in broker.conf and give the file with -c. If the log is gone, no message can "
        "be had from this store: restore it from a backup or a slave before any broker is started.",
    ),
    "LOG-START": Check(
        NOTE,
        "The log begins later than queues and index: retention may not be the reason.",
        "Retention deletes the oldest segments (after 72 hours, or when the disk is full) and then the files of "
        "queues and index that tell only of them. Here such files are left over, so either the broker stopped "
        "between the two steps, or somebody deleted the first segments.",
        "If nobody deleted segments by hand, nothing is to be done: the next retention takes these files away. "
        "Otherwise restore the segments from where they were moved, with their old names.",
    ),
    "LOG-STRAY": Check(
        WARNING,
        "Something in the folder of the commit log is no segment: a broker refuses to start.",
        "Every file there must be as long as a segment and named by 20 digits. Editors, copy tools and file "
        "managers leave other files (.swp, .DS_Store, partial copies). RocketMQ 4.9 does not start with a folder among "
        "the segments either, be it the file system's own lost+found; 5.3 passes folders by.",
        _RENAME
        + "Nothing in it is ever read by a broker. lost+found comes again with the next check of the file system: "
        "before a broker of 4.9 is started, mount the disk one folder higher.",
    ),
    "LOG-EMPTY-FILE": Check(
        WARNING,
        "The last segment is an empty file.",
        "The machine stopped, or the disk was full, just after the file was created. RocketMQ 5.1.3 and later "
        "delete such a file when they start; older ones refuse to start.",
        "Delete the empty file while the broker is stopped. If queues point behind the end of the log as well "
        "(QUEUE-BEYOND), the file had content once: look for it in a backup first.",
    ),
    "LOG-FILE-SIZE": Check(
        ERROR,
        "A segment is shorter or longer than it should be: a broker refuses to start.",
        "All segments have one length, 1 GiB by default (mappedFileSizeCommitLog). A shorter one was cut by a copy "
        "that ended early, a full disk or a damaged file system; what is cut off is lost. The length that is due is "
        "inferred from the names and lengths of the other segments, unless -c or --set gives it.",
        "Copy the segment again from its source if there is one. If only the unused end is missing, `truncate -s "
        "BYTES` makes the file whole again, with zeros. If every segment is reported, give the right size: `--set "
        "mappedFileSizeCommitLog=BYTES`.",
    ),
    "LOG-NAME": Check(
        ERROR,
        "A segment's name is not the address of its first byte.",
        "Names are multiples of the segment size, in 20 digits. A renamed or copied file holds messages that say to "
        "lie elsewhere; brokers sort by name and find nothing where queues point.",
        "`mqtool recover` gives each segment the name that its records tell, and takes out what is there twice. "
        "`mqtool dump commitlog -s FILE --limit 1` shows what the first message says (physical_offset).",
    ),
    "LOG-GAP": Check(
        ERROR,
        "A segment is missing between two others: its messages are lost.",
        "A file was deleted or not copied. Brokers only write a line to their log about it; queue units of the "
        "missing part point to nothing.",
        "Find the missing file (its name is the expected address) in a backup, on a slave, or where the store was "
        "copied from. " + _REST_IS_READABLE,
    ),
    "LOG-MAGIC": Check(
        ERROR,
        "There are bytes between two messages that are no record.",
        "Each record begins with its size and a magic code. Here the code is wrong: a page was lost or overwritten, "
        "or the head of a record or of a blank record was damaged. RocketMQ 4.x also takes the records of 5.1 and "
        "later for this.",
        _DAMAGED_LOG + _REST_IS_READABLE,
    ),
    "LOG-SIZES": Check(
        ERROR,
        "The sizes in a record contradict each other.",
        "A record's total size must be the sum of its head, body, topic and properties. One of these numbers is "
        "damaged. A 4.9 broker that meets a huge total size ends with an OutOfMemoryError while it loads the store.",
        _DAMAGED_LOG + "`mqtool get OFFSET --hex` shows the record field by field. " + _REST_IS_READABLE,
    ),
    "LOG-BLANK": Check(
        ERROR,
        "The record that fills the end of a segment is wrong or missing.",
        "When a message does not fit, a broker writes eight bytes, the space left and a magic code, and goes on in "
        "the next segment. With a wrong blank record a recovery takes the log to end here; a message whose magic "
        "code was turned into that of a blank hides all that follows in its segment.",
        _DAMAGED_LOG + _REST_IS_READABLE,
    ),
    "LOG-CRC": Check(
        ERROR,
        "The body of a message is not the one that was stored.",
        "The record holds a CRC-32 of the body, with which the body no longer agrees: bytes changed on the disk, in "
        "memory or during a copy, or the stored CRC itself did. Consumers get the message all the same, for brokers "
        "check the CRC only while they recover.",
        _DAMAGED_LOG + "`mqtool get OFFSET` shows what is left of the message. " + _REST_IS_READABLE,
    ),
    "LOG-PROPERTY-CRC": Check(
        ERROR,
        "A record does not match its CRC property, or lost it.",
        "With enabledAppendPropCRC (5.2 on) each record ends in a CRC of everything before it, so also of flags, "
        "topic and properties that the body's CRC leaves out. Only brokers with forceVerifyPropCRC look at it, and "
        "these cut the log here.",
        "Copy the whole store before anything else, and start no broker with forceVerifyPropCRC on the only copy. "
        + _REST_IS_READABLE,
    ),
    "LOG-POSITION": Check(
        ERROR,
        "A record says to lie at another address than where it lies.",
        "Each record holds its own address. Brokers do not compare it, but take the address for the queues from it: "
        "after a rebuild the queue would point to a wrong place. The number is damaged, or the bytes were copied "
        "here from elsewhere (a renamed segment, writeWithoutMmap of 5.3.4 and later, a tool).",
        "Copy the whole store before anything else. Do not let a broker rebuild its queues: today's queues may still "
        "point to the right place. `mqtool recover` puts such records where they say they belong, if nothing sound "
        "lies there. " + _REST_IS_READABLE,
    ),
    "LOG-PROPERTIES": Check(
        ERROR,
        "A property that a broker parses is not what it should be.",
        "Brokers read DELAY of delayed messages and INNER_NUM and INNER_BASE of batches as numbers. Where they "
        "cannot, the record is invalid to them: a recovery takes the log to end there. Properties are outside the "
        "body's CRC, so damage to them shows nowhere else.",
        _DAMAGED_LOG + _REST_IS_READABLE,
    ),
    "LOG-PROPERTY-TEXT": Check(
        ERROR,
        "The properties of a message are damaged.",
        "Properties are pairs of name and value between separators, outside the body's CRC. Here a piece has no name "
        "or no separator, or zeros lie over it, as no broker writes it: bytes changed on the disk, or those of another "
        "record lie there. Brokers do not look: consumers get the message, short of tags, keys or other properties in "
        "silence, light queues and the index no longer lead to it, and a delayed or prepared message that has lost "
        "its topic blocks those behind it.",
        "Copy the whole store before anything else. `mqtool get PHYSICAL_OFFSET` shows the body, which is whole if "
        "LOG-CRC does not tell otherwise, and what is left of the properties: do that before a mend, which takes the "
        "message for lost. " + _REST_IS_READABLE,
    ),
    "LOG-TOPIC": Check(
        ERROR,
        "The topic of a message is one that no broker can have.",
        "A topic is text without control characters and slashes, of 255 bytes at most, outside the body's CRC. Here "
        "it is something else: bytes changed on the disk, or those of another record lie there. Brokers do not look: "
        "the message goes to a queue that no client can ask for, and its own queue lacks it. Where no folder can have "
        "that name (a zero byte, too many bytes) a broker that dispatches the message as it starts waits for half a "
        "minute, and then gives no message behind it a queue unit any more.",
        "Copy the whole store before anything else. `mqtool get PHYSICAL_OFFSET` shows the message, whose body is "
        "whole if LOG-CRC does not tell otherwise: do that before a repair, which takes the message for lost. "
        + _REST_IS_READABLE,
    ),
    "LOG-FLAG": Check(
        WARNING,
        "The system flag of a record contradicts the record.",
        "The flag tells whether and how the body is compressed, and the part of a transaction that the message "
        "plays. It is outside the body's CRC. With a wrong flag consumers fail to unpack the body, or take packed "
        "bytes for the body; a prepared or rolled back transaction has queue offset 0.",
        "The body itself is whole if LOG-CRC does not tell otherwise: `mqtool get OFFSET --body base64` hands it "
        "out as it is stored. `mqtool recover -s STORE --abnormal` writes the flag anew where the body shows what it "
        "should be, and names what it leaves; brokers have no means to correct it.",
    ),
    "LOG-FLAG-BITS": Check(
        NOTE,
        "The system flag of a record has bits that no known version sets.",
        "Eleven bits have a meaning (compression, tags, transaction, hosts, batches). Brokers and clients ignore the "
        "others; a newer version may set them, or the flag is damaged, which nothing else would show.",
        "Nothing is to be done if all records of one time have them. A single record is worth a look: "
        "`mqtool get PHYSICAL_OFFSET --hex`.",
    ),
    "LOG-ENTRY": Check(
        ERROR,
        "The head of a DLedger entry does not fit its place.",
        "In DLedger mode each record lies in an entry whose head holds its place, its size and its number, one more "
        "than the one before. DLedger compares them when it starts and takes the log to end at the first that is "
        "wrong.",
        "If the group has other members that are sound, stop this one, move its data away and let it fetch the log "
        "again from the leader. The messages themselves can be read with mqtool in any case.",
    ),
    "LOG-QUEUE-ORDER": Check(
        ERROR,
        "The queue offsets of the messages in the log do not follow each other.",
        "Messages of one queue are numbered 0, 1, 2, .. in the order of the log. A missing number is a lost message "
        "(damage, a missing segment), or a damaged number; a number that comes again means that queues were lost "
        "and numbering began anew (topic deleted and made again, consumequeue deleted under 5.0 to 5.3.1), or "
        "records of an earlier life of the log.",
        "See which other findings lie at the same place: they tell what was lost and why. What is lost cannot be "
        "made again from this store; `mqtool recover` gives a damaged number back where its queue tells it. Where "
        "numbering began anew nothing is lost in the log, but consumers by offset read one of the two messages only; "
        "`mqtool find` and `dump commitlog` show both, and `mqtool salvage` makes a store with a place for each.",
    ),
    "LOG-TIME-ORDER": Check(
        WARNING,
        "A message was stored more than ten minutes before the one in front of it.",
        "Store times follow the order of the log unless the clock of the machine was set back, or the number is "
        "damaged. Search by time, retention of index files and the place where a recovery begins rely on the order.",
        "If the clock was set, nothing is to be done. If a single message stands out, its store time is damaged "
        "(`mqtool get OFFSET --hex`): search by time may miss messages around it. `mqtool recover -s STORE --abnormal` "
        "gives it the time of the message in front of it; what it leaves it names.",
    ),
    "LOG-TORN": Check(
        ERROR,
        "The last record of the log was not written to its end.",
        "The machine or the process died while the record went to the disk (ASYNC_FLUSH writes behind the answer to "
        "the producer), or what followed was lost with it. A recovery cuts the log before it.",
        "`mqtool get OFFSET --hex` shows what there is of it; copy the store first if that matters. Then start the "
        "broker: it cuts the record off. If queues point behind it (QUEUE-BEYOND), more than this message is lost; "
        "look for a slave or a backup first.",
    ),
    "LOG-STALE": Check(
        WARNING,
        "Whole records lie where the log has ended, or are left from an earlier life of the log.",
        "When a recovery cuts the log it leaves the old bytes (all versions). Once a new message ends just where an "
        "old record begins, the next start adopts the old records again: with old queue offsets, as duplicates. The "
        "same happens with writeWithoutMmap (5.3.4 on).",
        "Brokers have no setting against this. While the broker is stopped, the bytes from the given place to the "
        "end of the segment may be overwritten with zeros (`dd conv=notrunc`), after a copy of the file was made.",
    ),
    "LOG-NOISE": Check(
        WARNING,
        "There are bytes behind the end of the log that are no record.",
        "They are the rest of something longer that was cut off, or damage. The next message overwrites them; until "
        "then they hide whether the log once went on.",
        "If queues point behind the end of the log (QUEUE-BEYOND), messages were lost here: copy the store first. "
        "Otherwise nothing is to be done.",
    ),
    # Consume queues.
    "QUEUE-STRAY": Check(
        WARNING,
        "Something in the folder of a queue is no file of it: a broker refuses to start.",
        "Every file there must be named by 20 digits and have one length. Copy tools and editors leave other files.",
        _RENAME + "Nothing in it is ever read by a broker.",
    ),
    "QUEUE-FILE-SIZE": Check(
        WARNING,
        "A file of a queue is shorter or longer than it should be: a broker refuses to start.",
        "Files of queues have one length: 6,000,000 bytes by default (mappedFileSizeConsumeQueue), 13,800,000 for "
        "queues of batches. It was cut by a copy or a full disk, or the setting was changed. The length that is due "
        "is that of most files.",
        "Delete the folder of this queue or make all queues again. " + _REBUILD,
    ),
    "QUEUE-NAME": Check(
        WARNING,
        "A file of a queue is named by a number that it cannot have.",
        "The name is the position of the first byte in the queue, a multiple of the length of a file. Brokers take "
        "every unit in it for one of another message.",
        "Rename it if its right name is known, else make the queues again. " + _REBUILD,
    ),
    "QUEUE-GAP": Check(
        WARNING,
        "A file of a queue is missing between two others.",
        "It was deleted or not copied. Consumers skip the messages of the gap though the log still holds them.",
        _REBUILD,
    ),
    "QUEUE-MISSING": Check(
        WARNING,
        "Messages of the log have no unit in their queue: consumers do not get them.",
        "At the end of a queue: the broker stopped before it had dispatched the messages. 4.x and, where its "
        "recovery begins early enough, 5.x catch up when they start; 5.3.2 and later lose the first missing unit "
        "after a clean stop, and reuse its queue offset. In the middle or as a whole: units or files were lost, or "
        "a broker of 5.4 or later recovered only the last ten segments and began the queue with filler.",
        "If only the ends of queues are missing, create an empty file abort, unless there is one, start the broker "
        "and verify again. Else make the queues again, before new messages take the same queue offsets. " + _REBUILD,
    ),
    "QUEUE-POSITION": Check(
        WARNING,
        "A unit points to another place than its message.",
        "The unit is damaged, or units lie at the wrong index: a broker that finds a gap writes the next unit at "
        "the end of the queue all the same. Consumers get another message or none.",
        _REBUILD,
    ),
    "QUEUE-LENGTH": Check(
        WARNING,
        "A unit gives another size than its message has.",
        "The unit is damaged. Brokers cut as many bytes out of the log as the unit says, so consumers fail to parse "
        "what they get.",
        _REBUILD,
    ),
    "QUEUE-TAGS": Check(
        WARNING,
        "The tags code of a unit is not that of its message.",
        "The code is the Java hash of the tag, of a delayed message the time of delivery. The unit is damaged, or "
        "the tag in the log is. Consumers that filter by tag miss the message; a delayed message comes at another "
        "time. With delay levels of your own (messageDelayLevel) give -c broker.conf, or all delayed messages may "
        "be reported.",
        _REBUILD,
    ),
    "QUEUE-TIME": Check(
        WARNING,
        "A unit gives another store time than its message has.",
        "Units of batch queues and of RocksDB hold the store time, for search by time. It is damaged here or in the "
        "log.",
        _REBUILD,
    ),
    "QUEUE-BATCH": Check(
        WARNING,
        "A unit counts another number of messages than its record holds.",
        "Topics with queue.type=BatchCQ keep several messages in one record (5.x); the unit holds their number. It "
        "is damaged here, or the property INNER_NUM of the record is.",
        _REBUILD,
    ),
    "QUEUE-EXT": Check(
        WARNING,
        "The extension of a queue does not fit its units.",
        "With enableConsumeQueueExt the tags code of a unit is an address in consumequeue_ext, where tag, store "
        "time and filter bits lie. A broker walks over these units by their sizes when it starts, and drops "
        "everything behind a wrong one.",
        "Messages are not affected, only filters are slower or wrong. " + _REBUILD,
    ),
    "QUEUE-TORN": Check(
        WARNING,
        "A unit was not written to its end.",
        "The machine stopped while the unit went to the disk. A broker takes the queue to end before it; it catches "
        "up with the messages behind from the log where its recovery begins early enough.",
        "Create an empty file abort, unless there is one, start the broker and verify again. If it persists, make "
        "the queues again. " + _REBUILD,
    ),
    "QUEUE-BEYOND": Check(
        ERROR,
        "A queue points behind the end of the log: messages are lost.",
        "The log lost its end, and the queues, written later but flushed on their own, still tell of it: a power "
        "failure with ASYNC_FLUSH, a missing last segment, or a damaged record that a recovery took for the end. "
        "When it starts, a broker cuts the queues as well, and new messages take the same queue offsets.",
        "The lost messages cannot be made again from this store. Before a broker starts, copy the store, note "
        "topic, queue and offsets from this list, and look for the messages on a slave, in a backup, or with the "
        "producers.",
    ),
    "QUEUE-DANGLING": Check(
        ERROR,
        "A unit points to a place in the log where no message of its queue begins.",
        "The message was there once and is damaged or lost: other findings lie at the same physical offset. Or the "
        "unit is left over from before the log or the queue was cut (files are cut by numbers only, the bytes "
        "remain).",
        "See the findings at the physical offset first. If the log is sound there, the unit is left over: " + _REBUILD,
    ),
    "QUEUE-ROCKSDB-DAMAGED": Check(
        WARNING,
        "RocksDB refuses to open the database of the queues.",
        "With storeType=defaultRocksDB (5.2 on) queues lie in a RocksDB under consumequeue or consumequeue_rocksdb. "
        "A file of it is missing or damaged.",
        "The messages are in the log all the same. Copy the folder, then delete it, create an empty file abort and "
        "start the broker: it fills the database from the log, 5.4 and later from the last ten segments only unless "
        "commitLogRecoverMaxNum is larger.",
    ),
    "QUEUE-ROCKSDB": Check(
        WARNING,
        "Queues lie in RocksDB and were not looked at.",
        "With storeType=defaultRocksDB (5.2 on) queues lie in a RocksDB, which mqtool reads through an optional "
        "package.",
        "`pip install 'mqtool[rocksdb]'`, then verify again.",
    ),
    # The index.
    "INDEX-STRAY": Check(
        NOTE,
        "Something in the index folder has no name of an index file.",
        "Names are 17 digits, a local time. Brokers skip names that are no number, and take a file with any other "
        "number for an index file.",
        "Move it away if nobody needs it.",
    ),
    "INDEX-FILE-SIZE": Check(
        WARNING,
        "An index file is shorter or longer than the others.",
        "All have one length: 420,000,040 bytes by default (maxHashSlotNum, maxIndexNum). Brokers do not compare "
        "it: a short file grows with zeros when it is mapped, and its entries that were cut off are lost.",
        "Search by key misses the lost entries; `mqtool find --key` scans the log where the index does not reach. "
        + _REBUILD,
    ),
    "INDEX-SHAPE": Check(
        WARNING,
        "It cannot be told where slots end and entries begin.",
        "The file does not say how many slots it has (maxHashSlotNum, maxIndexNum). Chains of entries usually show "
        "it; they do not when the file is damaged or the header is.",
        "Give the numbers from broker.conf with -c, or `--set maxHashSlotNum=N --set maxIndexNum=N`. If it is "
        "reported still, the file is damaged. " + _REBUILD,
    ),
    "INDEX-HEADER": Check(
        WARNING,
        "The header of an index file contradicts its entries.",
        "The header counts slots and entries and gives the times and addresses between which the messages lie. "
        "After a crash it may be a little older than the entries. Brokers search only files whose times fit, add "
        "the next entry where the counter says, and drop or keep the file after a crash by its end time.",
        _REBUILD,
    ),
    "INDEX-CHAIN": Check(
        WARNING,
        "An entry is not linked to the one before it in its slot.",
        "Entries of a slot form a chain from the newest to the oldest. With a wrong link search by key misses the "
        "older ones, or the link or the key hash of the entry is damaged.",
        _REBUILD,
    ),
    "INDEX-SLOT": Check(
        WARNING,
        "A slot does not name its newest entry.",
        "Search by key begins at the slot. Entries newer than the one it names, or all of the slot, are not found.",
        _REBUILD,
    ),
    "INDEX-ENTRY": Check(
        WARNING,
        "An entry does not belong to a key of the message it points to.",
        "The hash or the address in the entry is damaged, or the message is: its keys lie in the properties, "
        "outside the body's CRC. Also left over where the log was cut and written again.",
        "`mqtool get PHYSICAL_OFFSET --hex` shows the message: see whether its UNIQ_KEY, KEYS and topic are what "
        "they should be. If they are, the index is at fault. " + _REBUILD,
    ),
    "INDEX-TIME": Check(
        WARNING,
        "An entry gives another time than its message has.",
        "Entries hold seconds since the first entry of the file. Search by key within a span of time may miss the "
        "message.",
        _REBUILD,
    ),
    "INDEX-MISSING": Check(
        WARNING,
        "Keys of messages have no entry: search by key does not find them.",
        "An index file is missing, or two rolled within one millisecond and overwrote each other (4.9, 5.3), or a "
        "broker dropped the youngest files after a crash, as it always does, and made them again only from where "
        "its recovery began. A clean start never makes a deleted index again. With messageIndexEnable=false there "
        "is none.",
        "Nothing is lost but the way to it: `mqtool find --key` scans the log where the index does not reach. "
        + _REBUILD,
    ),
    "INDEX-DUPLICATE": Check(
        NOTE,
        "A key of a message has two entries.",
        "A recovery dispatched the message once more. Search by key returns it twice.",
        "Nothing is to be done.",
    ),
    "INDEX-BEYOND": Check(
        WARNING,
        "Entries point behind the end of the log.",
        "The log lost its end (QUEUE-BEYOND, LOG-TORN), and the index still tells of it. As soon as new messages "
        "lie there, search by key returns wrong ones.",
        "See to the end of the log first. " + _REBUILD,
    ),
    # Small files.
    "CHECKPOINT-MISSING": Check(
        WARNING,
        "The checkpoint is missing.",
        "It was deleted or not copied. A broker makes a new one; without it an abnormal recovery reads the whole "
        "log, 5.4 and later its last ten segments, which takes long for a large store and deletes all index files "
        "to make them again.",
        "Nothing is lost. After a clean stop just start the broker.",
    ),
    "CHECKPOINT-SIZE": Check(
        WARNING,
        "The checkpoint is not a file of 4096 bytes.",
        "A broker writes exactly one page. The file was cut, or something else took its place.",
        "Delete it while the broker is stopped: a recovery then reads the whole log, 5.4 and later its last ten "
        "segments unless commitLogRecoverMaxNum is larger.",
    ),
    "CHECKPOINT-ZERO": Check(
        NOTE,
        "Nothing is noted in the checkpoint.",
        "The broker was killed before it wrote its checkpoint for the first time, or the file was zeroed. An "
        "abnormal recovery reads the whole log, 5.4 and later its last ten segments.",
        "Nothing is to be done.",
    ),
    "CHECKPOINT-AHEAD": Check(
        WARNING,
        "The checkpoint notes more than the log holds: a recovery may begin too late.",
        "An abnormal recovery begins at the last segment that is older than the checkpoint. The log lost its end, "
        "or the clock was set back, or the file is damaged or of another store. Queues and index would not be made "
        "again from far enough back.",
        "Delete the file checkpoint while the broker is stopped: a recovery then reads the whole log. With 5.4 and "
        "later also set commitLogRecoverMaxNum above the number of segments.",
    ),
    "CHECKPOINT-REST": Check(
        NOTE,
        "There are bytes in the checkpoint that no known version writes.",
        "Five numbers are known up to 5.4, six from 5.5 on. A newer version may write more.",
        "Nothing is to be done, unless the file is damaged in other places too.",
    ),
    "ABORT-FILE": Check(
        NOTE,
        "The broker was not stopped cleanly.",
        "The file abort is there while a broker runs, and left when it is killed. The next start recovers "
        "abnormally: it checks the log from the checkpoint on and dispatches again. (abort.bak says nothing, 5.x "
        "always leaves it.)",
        "Nothing is to be done if the other findings are harmless. Copy the store before the start if the log has "
        "errors.",
    ),
    "STORE-UNREAD": Check(
        WARNING,
        "A part of the store could not be read, and was not checked.",
        "This user may not read it, a link leads nowhere (a disk that is not mounted), or it is of a kind that mqtool "
        "does not read, as the indexes, timers and transactions that RocketMQ 5.4 and later can keep in RocksDB.",
        "Run `mqtool verify` as the broker's user, with all disks of the broker mounted. Nothing is known of what "
        "this finding names until then.",
    ),
    "STORE-LIVE": Check(
        NOTE,
        "A broker is running on this store, or --live says so.",
        "It holds the lock on the file lock. What it may be writing now is not judged: the ends of log, queues, "
        "index and timer.",
        "Stop the broker, or copy the store after a stop, for a complete check.",
    ),
    # The timer (5.x).
    "TIMER-MISSING": Check(
        WARNING,
        "A file of the timer is missing though others are there.",
        "The timer of 5.x keeps timerwheel, timerlog and config/timercheck. Without the wheel or timercheck a "
        "broker reads only the end of the timer log again, so older timer messages are not delivered.",
        "Restore the file. The messages themselves are in the log: `mqtool pull --topic rmq_sys_wheel_timer --queue "
        "0` lists them with the time they are due (TIMER_OUT_MS), to be sent again. Brokers have no other means.",
    ),
    "TIMER-FILE-SIZE": Check(
        WARNING,
        "A file of the timer has a wrong length or name.",
        "The wheel has 38,707,200 bytes, timercheck 4096, all files of the timer log one length "
        "(mappedFileSizeTimerLog). A copy or a full disk cut it. With a wheel or timer log of a wrong length "
        "brokers refuse to start.",
        "Restore the file. If that cannot be, see TIMER-MISSING.",
    ),
    "TIMER-UNIT": Check(
        WARNING,
        "A unit of the timer log is damaged.",
        "A unit holds its kind, the time it is due, the hash of the topic and the place of its message. One of "
        "these contradicts the message: it is delivered at a wrong time or not at all, or a cancelled one is "
        "delivered.",
        "`mqtool get PHYSICAL_OFFSET` shows the message, to be sent again by hand. Brokers do not correct the unit.",
    ),
    "TIMER-CHAIN": Check(
        WARNING,
        "A unit of the timer log is not linked to the one before it in its second.",
        "The units of one second form a chain from the last to the first. Those behind a wrong link are not delivered.",
        "`mqtool pull --topic rmq_sys_wheel_timer --queue 0` lists the messages with the time they are due "
        "(TIMER_OUT_MS), to be sent again.",
    ),
    "TIMER-SLOT": Check(
        WARNING,
        "A slot of the timer wheel does not fit the timer log.",
        "Each second to come has a slot that names its first and last unit and counts the messages. A wrong slot "
        "delivers too few, or messages of another second. After a kill the wheel may be a second older than the "
        "log; that is not reported.",
        "`mqtool pull --topic rmq_sys_wheel_timer --queue 0` lists the messages with the time they are due "
        "(TIMER_OUT_MS), to be sent again.",
    ),
    "TIMER-MESSAGE": Check(
        WARNING,
        "A unit of the timer log points to no timer message.",
        "The message is lost or damaged in the log (see the other findings there), or the unit is. Nothing is "
        "delivered.",
        "See to the log first. A lost message cannot be made again from this store.",
    ),
    "TIMER-CHECK": Check(
        WARNING,
        "timercheck notes that the timer has come further than its files show.",
        "The file holds how far the timer log was written and the timer's queue was read. With larger numbers the "
        "timer skips messages. The log or the queue lost its end, or the file is damaged or of another store.",
        "Restore config/timercheck. If that cannot be, list what is due with `mqtool pull --topic "
        "rmq_sys_wheel_timer --queue 0` and see that it is delivered.",
    ),
    # Tables under config/.
    "CONFIG-UNREADABLE": Check(
        ERROR,
        "A table under config/ and its backup cannot be read.",
        "They were cut or damaged, by a full disk for example, or edited by hand. A broker starts without: topics "
        "and groups are unknown until they are created again, consumers begin anew. RocketMQ 5.4 and later also "
        "delete a file they cannot read.",
        "Copy the file before a broker starts. The message tells where reading ended; often one place has to be "
        "corrected. Topics and queue numbers can be seen in the queues (`mqtool info`); consumer offsets cannot be "
        "made again from this store.",
    ),
    "CONFIG-FROM-BACKUP": Check(
        WARNING,
        "A table under config/ is missing or cannot be read, but its backup can.",
        "The broker was stopped while it wrote (5.3.4 and later rename the old file first), or the file was "
        "damaged. A broker takes the backup, which is one change older. RocketMQ 5.4 and later delete a file they "
        "cannot read.",
        "If the last change matters, copy both files and correct the first by hand, else nothing is to be done.",
    ),
    "CONFIG-BACKUP": Check(
        NOTE,
        "The backup of a table under config/ cannot be read.",
        "The table itself is sound. The backup was damaged, or cut by a full disk; the next change of the table "
        "writes it anew.",
        "Nothing is to be done while the table is sound.",
    ),
    "CONFIG-ROCKSDB": Check(
        WARNING,
        "Topics, groups and offsets lie in RocksDB and were not looked at.",
        "Brokers of 5.2 and later may keep their tables in RocksDB, which mqtool reads through an optional package.",
        "`pip install 'mqtool[rocksdb]'`, then verify again.",
    ),
    "CONFIG-MISSING": Check(
        NOTE,
        "There is no table of topics.",
        "The store was copied without its folder config, or the broker keeps it elsewhere. A broker that starts on "
        "it knows no topic until producers create them, if autoCreateTopicEnable allows it.",
        "Copy config/topics.json, subscriptionGroup.json and consumerOffset.json too before a broker starts on this "
        "store.",
    ),
    "CONFIG-NO-TOPIC": Check(
        WARNING,
        "There are queues of a topic that brokers do not know.",
        "The topic was deleted and its queues are left over, or topics.json is older than the queues or of another "
        "store. Nobody can read the messages until the topic exists.",
        "If the topic should exist, create it again with as many queues: `mqadmin updateTopic -t TOPIC -r N -w N -b "
        "BROKER`.",
    ),
    "CONFIG-NO-QUEUE": Check(
        NOTE,
        "There are topics to which nothing was ever sent.",
        "Queues are made when the first message comes. Brokers create some topics by themselves, named after "
        "cluster and broker.",
        "Nothing is to be done.",
    ),
    "CONFIG-QUEUE-COUNT": Check(
        WARNING,
        "A topic has more queues on disk than its table says.",
        "The number of queues was made smaller while messages were left in the higher ones, or topics.json is older "
        "than the queues. Consumers do not read the higher queues.",
        "Raise the number of read queues until these are read: `mqadmin updateTopic -t TOPIC -r N -w M -b BROKER`.",
    ),
    "CONFIG-NO-GROUP": Check(
        NOTE,
        "A consumer group has offsets but no settings of its own.",
        "The group was deleted and its offsets are left over, or subscriptionGroup.json is older. A broker with "
        "autoCreateSubscriptionGroup makes the settings again, with defaults, when the group comes back.",
        "Nothing is to be done, unless the group had settings that matter (retries, broadcast, order).",
    ),
    "CONFIG-OFFSET": Check(
        WARNING,
        "A consumer group would read on behind the end of its queue.",
        "Consumer offsets are larger than the queue is long: the queue or the log lost its end, the topic was made "
        "again, or consumerOffset.json is of another time. A broker corrects the consumer when it pulls, mostly to "
        "the end of the queue: it then misses messages or reads some twice.",
        "Find out why the queue is short first (QUEUE-MISSING, QUEUE-BEYOND). Then set the group: `mqadmin "
        "resetOffsetByTime -g GROUP -t TOPIC -s TIME`.",
    ),
    "CONFIG-OFFSET-EXPIRED": Check(
        NOTE,
        "A consumer group has yet to read messages that are gone.",
        "Retention deleted them before the group came to them, or the group is no longer used.",
        "Nothing can be done for these messages. The group goes on at the first message that is left.",
    ),
    "CONFIG-DELAY-OFFSET": Check(
        WARNING,
        "A delay level would go on behind the end of its queue.",
        "delayOffset.json notes how far each level was delivered. The queue of the level or the log lost its end, "
        "or the file is of another time. 5.x corrects the number when it starts, 4.x takes it as it is.",
        "Make the queues whole first if they lost their ends (QUEUE-MISSING). Then `mqtool rebuild config` puts the "
        "number to the end of the queue.",
    ),
}
