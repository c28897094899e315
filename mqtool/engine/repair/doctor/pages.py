"""The pages of causes that only ``doctor`` names, as ``explain`` shows them; all others are checks of ``verify``."""

from mqtool.engine.repair.checks import ERROR, WARNING, Check

_EDIT = (
    "The command that doctor prints changes that one line of broker.conf; without -c it only shows what doctor "
    "would say then. Restart the broker afterwards."
)
_FIRST_STOP = "Stop the broker if it is still running, and copy the store first. "

PAGES: dict[str, Check] = {
    # Place and machine.
    "STORE-IN-USE": Check(
        ERROR,
        "Another process uses this store: a second broker exits at once.",
        "A broker locks the first byte of the file lock while it runs. It may be one that was believed to be "
        "stopped, in a container, or under a supervisor that restarts it.",
        "Find the process (`ps`, `fuser`, the supervisor) and either keep it or stop it with `mqshutdown broker`; "
        "never delete the file lock while it runs.",
    ),
    "NOT-PERMITTED": Check(
        ERROR,
        "Files do not belong to the broker's user, or it has no access to them.",
        "Most often a broker, or a command that changes files, was once run as root: what it created belongs to "
        "root. A restored backup or another user id in a container has the same effect.",
        "Give the files to the broker's user with the command that doctor prints; -u tells doctor who that is.",
    ),
    "STORE-TWO-BROKERS": Check(
        ERROR,
        "Two brokers use one store: each overwrites what the other writes.",
        "The process recorded in the file abort is running, but does not hold the lock: the file lock was deleted "
        "or replaced, or the file system does not support locks.",
        "Stop both at once, copy the store, then run `mqtool verify` and `mqtool recover --abnormal`.",
    ),
    "DISK-FULL": Check(
        ERROR,
        "The disk is full or nearly full.",
        "From diskSpaceCleanForciblyRatio on (85 %) a broker deletes the oldest messages whatever their age, above "
        "diskSpaceWarningLevelRatio (90 %) it accepts no new ones, and without a free byte or inode it cannot start.",
        "Free some space on that disk, or move the store to a larger one. cleanFileForciblyEnable=false keeps the "
        "old messages in the meantime.",
    ),
    # Settings.
    "SETTING-IGNORED": Check(
        ERROR,
        "A setting is malformed, so the default applies.",
        "A broker silently ignores a number that it cannot read (1g, 1_048_576, a trailing word) and uses its "
        "default: then the sizes of files do not match.",
        _EDIT + " Sizes are whole numbers of bytes.",
    ),
    "SETTING-FILE-SIZE": Check(
        ERROR,
        "A size in the settings does not match the files: all of them look damaged.",
        "The size was changed after the store was created, or broker.conf was lost and the default applies. The "
        "file sizes of a store that contains messages can never be changed.",
        _EDIT + " For other sizes copy the messages: `mqtool export`, then `mqtool import --set ..`.",
    ),
    "SETTING-SLAVE-ID": Check(
        ERROR,
        "A slave needs an id of its own.",
        "brokerId 0 is that of the master. A broker with brokerRole=SLAVE and a brokerId of 0 or below exits at once.",
        _EDIT + " Each slave of a master needs a different id above 0.",
    ),
    "SETTING-LOG-PATH": Check(
        ERROR,
        "The settings name another folder for the log: a broker without its log deletes the queues.",
        "storePathCommitLog names an empty folder, or is not set although the log is elsewhere: a disk that is not "
        "mounted, a path that was changed, a broker.conf that was lost.",
        "Do not start a broker before this is right. Mount the disk, or correct the path. " + _EDIT,
    ),
    "SETTING-DLEDGER": Check(
        ERROR,
        "The log is a DLedger log, but DLedger is off.",
        "Without enableDLegerCommitLog=true a broker starts a new log beside the old one and deletes the queues.",
        _EDIT + " The group, the peers and the broker's own id (dLegerGroup, dLegerPeers, dLegerSelfId) must be set as "
        "before.",
    ),
    "SETTING-FORCED-CRC": Check(
        ERROR,
        "Records are checked against a CRC property that they do not have.",
        "forceVerifyPropCRC makes a recovery cut the log at the first record without that property: those written "
        "before enabledAppendPropCRC was set, or by older brokers.",
        _EDIT + " Set it again when the last record without the property has expired.",
    ),
    "SETTING-STORE-PATH": Check(
        WARNING,
        "The settings name another store.",
        "storePathRootDir is not the folder that doctor is checking: a broker with these settings serves other "
        "messages.",
        _EDIT + " Or give doctor the store that the settings name.",
    ),
    "SETTING-ROCKSDB": Check(
        WARNING,
        "The queues are in RocksDB, but the broker reads files.",
        "storeType=defaultRocksDB was set when the store was last used and no longer is, or the broker is a 4.9, "
        "which does not support it.",
        _EDIT + " `mqtool rebuild queues --into DIR` creates the queues as files.",
    ),
    "SETTING-PERMISSION": Check(
        WARNING,
        "The whole broker is closed for reading or writing.",
        "brokerPermission is 4 (read), 2 (write) or 6 (both, the default). It is lowered for maintenance and then "
        "forgotten; `mqadmin wipeWritePerm` lowers it only in the name server, until the broker restarts.",
        _EDIT,
    ),
    "SETTING-TIMER": Check(
        WARNING,
        "The timer is off.",
        "There are timer messages, and timerWheelEnable, timerStopEnqueue or timerStopDequeue keeps the broker from "
        "accepting or delivering them.",
        _EDIT + " What became due in the meantime is delivered at once.",
    ),
    # Files of the log and the queues.
    "EMPTY-FILE": Check(
        ERROR,
        "A file was created and never filled: brokers before 5.1.3 refuse it.",
        "The broker, or the machine, stopped between creating a file and setting its length.",
        "Move the file away with the command that doctor prints; nothing is lost with it.",
    ),
    "QUEUE-TYPE": Check(
        ERROR,
        "Queues are of another type than topics.json says.",
        "The topic attribute queue.type selects consumequeue or batchconsumequeue. topics.json was replaced or "
        "restored from another time, or the topic was deleted and created again with another type.",
        "`mqtool rebuild config` sets the attribute of topics that have only batch queues. If there are queues of both "
        "types, `mqtool rebuild queues` makes those that the log shows.",
    ),
    "LOG-OUT-OF-MEMORY": Check(
        ERROR,
        "A damaged size makes 4.9 fail with an OutOfMemoryError.",
        "4.9 allocates as many bytes as a record claims to have before it checks anything else.",
        _FIRST_STOP + "Run `mqtool recover`, which bridges the place, or start a 5.x broker.",
    ),
    "LOG-SECOND-KIND": Check(
        ERROR,
        "Records of 5.1 and later: 4.9 mistakes them for damage.",
        "Topics with names of more than 127 bytes are written as v2 records. 4.9 cuts the log at "
        "the first of them and deletes everything after it.",
        "Start 5.1 or later on this store. To go back to 4.9, export the messages of the other topics and import them "
        "into a new store.",
    ),
    "LOG-DAMAGED": Check(
        ERROR,
        "A record is damaged: recovery ends the log there.",
        "A disk or controller lied about what it had written, a copy was incomplete, or somebody wrote to the file. "
        "The evidence names the check (LOG-CRC, LOG-SIZES, ..); `mqtool explain` says more about it.",
        _FIRST_STOP
        + "`mqtool recover` bridges the place, so that all messages after it are kept; `mqtool salvage` copies "
        "what is readable into a new store.",
    ),
    # Delivery.
    "BATCH-QUEUES": Check(
        WARNING,
        "Topics with batch queues: 4.9 does not support them.",
        "They were sent to a 5.x broker with queue.type=BatchCQ. 4.9 never reads batchconsumequeue.",
        "Start 5.0 or later on this store, or export their messages.",
    ),
    "QUEUES-LOST": Check(
        WARNING,
        "Queues are gone: consumers do not get their messages.",
        "Somebody deleted the folder of a queue, or a copy lacks it. Brokers rebuild all queues when there are none "
        "at all (5.4 and later only those of the last ten segments), but never a single one: it restarts at offset "
        "0, and groups wait until it has passed what they have read.",
        "`mqtool recover --abnormal` completes them from the whole log and keeps the queue offsets of lost "
        "messages; `mqtool rebuild queues` rebuilds them byte for byte. Do it before a broker is started.",
    ),
    "TOPIC-PERMISSION": Check(
        WARNING,
        "A topic is closed for reading or writing.",
        "perm is 4 (read), 2 (write) or 6 (both). It is lowered on purpose while a topic moves to another broker.",
        "`mqadmin updateTopicPerm` opens it while the broker is running.",
    ),
    "TOPIC-QUEUES": Check(
        WARNING,
        "A topic has no queues, or some that nobody reads.",
        "Producers use as many queues as writeQueueNums, consumers as many as readQueueNums: if the latter is "
        "smaller, the messages of the last queues are never consumed.",
        "`mqadmin updateTopic` sets both while the broker is running; to shrink a topic, lower the first, wait "
        "until everything is consumed, then lower the second.",
    ),
    "GROUP-DISABLED": Check(
        WARNING,
        "A consumer group is switched off.",
        "consumeEnable is false for it in subscriptionGroup.json: every pull is refused.",
        "`mqadmin updateSubGroup .. -s true` switches it on while the broker is running.",
    ),
    "HALF-STUCK": Check(
        WARNING,
        "Transactions are stuck: no producer has decided them.",
        "For a half message the broker asks its producer's group (check back), up to transactionCheckMax times. "
        "Here some are over an hour older than the newest message and undecided: no producer of the group was "
        "there, or the op messages are lost.",
        "Look at them with the command that doctor prints; start a producer of their group, which a broker then asks.",
    ),
    "TIMER-DAMAGED": Check(
        WARNING,
        "The timer wheel or log is damaged: messages are not delivered on time.",
        "The evidence names the check (TIMER-..); `mqtool explain` says more about it.",
        "The messages themselves are in the topic rmq_sys_wheel_timer: pull them, and send those again that are due.",
    ),
    "START-REFUSED": Check(
        ERROR,
        "A broker does not start on this store.",
        "This is what `mqtool recover --as-broker` predicts, and none of the other causes applies: the evidence is "
        "the step of the start that fails.",
        "Run the command that doctor prints, then doctor again.",
    ),
    "START-HIDES": Check(
        WARNING,
        "A broker that is started leaves messages out of their queues: consumers do not get them.",
        "They are in the log and sound, but the broker dispatches only what comes after the place where its "
        "recovery starts, and trusts its queues for the rest (`mqtool recover --as-broker`).",
        "Run the command that doctor prints before you start a broker: it completes the queues from the whole log.",
    ),
    # Misbehaviour.
    "OFFSETS-LOST": Check(
        WARNING,
        "The consumer offsets are gone.",
        "consumerOffset.json and its backup do not exist, although retry topics show that groups have consumed. "
        "They start at the end or at the beginning of their queues, as consumeFromWhere says.",
        "Restore the file from a backup. `mqtool rebuild config` records what messages in the retry topics show, which "
        "may be far behind; if there are none (doctor does not print it then), set each group to where it has to go on "
        "(`mqtool offset set`), before it consumes.",
    ),
    "DELAY-LOST": Check(
        WARNING,
        "The delivery progress of delayed messages is lost.",
        "delayOffset.json and its backup do not exist: a broker delivers all delayed messages that are retained "
        "once more.",
        "`mqtool rebuild config` creates the file from what was due, before a broker is started.",
    ),
    "CLOCK-AHEAD": Check(
        WARNING,
        "The store has messages from the future.",
        "The machine's clock was ahead when they were stored, or has been set back since. Delays, search by time "
        "and retention go by these times.",
        "Make sure that the clock is right (`timedatectl`, chrony). The messages stay as they are.",
    ),
}
