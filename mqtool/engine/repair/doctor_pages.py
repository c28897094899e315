"""The pages of causes that only ``doctor`` names, as ``explain`` shows them; all others are checks of ``verify``."""

from mqtool.engine.repair.checks import ERROR, WARNING, Check

_EDIT = (
    "The command that doctor prints changes the one line of broker.conf; without -c it only shows what doctor would "
    "say then. Restart the broker afterwards."
)
_FIRST_STOP = "Stop the broker if it still runs, and take a copy of the store first. "

PAGES: dict[str, Check] = {
    # Place and machine.
    "STORE-IN-USE": Check(
        ERROR,
        "Another process has this store: a second broker ends at once.",
        "A broker locks the first byte of the file lock for as long as it runs. It may be one that was thought to be "
        "stopped, in a container, or under a supervisor that starts it again.",
        "Find the process (`ps`, `fuser`, the supervisor) and either keep it or stop it with `mqshutdown broker`; "
        "never delete the file lock while it runs.",
    ),
    "NOT-PERMITTED": Check(
        ERROR,
        "Files do not belong to the broker's user, or may not be used by it.",
        "Most often a broker, or a command that changes files, was run as root once: what it made belongs to root. A "
        "restored backup or another number of the user in a container does the same.",
        "Give the files to the broker's user with the command that doctor prints; -u tells doctor who that is.",
    ),
    "STORE-TWO-BROKERS": Check(
        ERROR,
        "Two brokers work on one store: each overwrites what the other writes.",
        "The process that noted itself in the file abort runs, but does not hold the lock: the file lock was "
        "deleted or replaced, or the file system knows no locks.",
        "Stop both at once, copy the store, then run `mqtool verify` and `mqtool recover --abnormal`.",
    ),
    "DISK-FULL": Check(
        ERROR,
        "The disk is full, or nearly so.",
        "From diskSpaceCleanForciblyRatio on (85 %) a broker deletes the oldest messages whatever their age, above "
        "diskSpaceWarningLevelRatio (90 %) it takes no new ones, and without a free byte or inode it cannot start.",
        "Make room on that disk, or move the store to a larger one. cleanFileForciblyEnable=false keeps the old "
        "messages meanwhile.",
    ),
    # Settings.
    "SETTING-IGNORED": Check(
        ERROR,
        "A setting is malformed, so that the default holds.",
        "A broker drops a number that it cannot read (1g, 1_048_576, a trailing word) without saying so, and takes its "
        "default: then the sizes of files do not fit.",
        _EDIT + " Sizes are whole numbers of bytes.",
    ),
    "SETTING-FILE-SIZE": Check(
        ERROR,
        "A size in the settings is not that of the files: all of them look damaged.",
        "The size was changed after the store was made, or broker.conf was lost and the default holds. The sizes of "
        "files can never be changed in a store that holds messages.",
        _EDIT + " For other sizes copy the messages: `mqtool export`, then `mqtool import --set ..`.",
    ),
    "SETTING-SLAVE-ID": Check(
        ERROR,
        "A slave needs a number of its own.",
        "brokerId 0 is that of the master. A broker with brokerRole=SLAVE and a brokerId of 0 or below ends at once.",
        _EDIT + " Each slave of a master takes another number above 0.",
    ),
    "SETTING-LOG-PATH": Check(
        ERROR,
        "The settings name another folder for the log: a broker without its log deletes the queues.",
        "storePathCommitLog names a folder in which there is nothing, or is not set though the log lies elsewhere: "
        "a disk that is not mounted, a path that was changed, a broker.conf that was lost.",
        "Start no broker before this is right. Mount the disk, or correct the path. " + _EDIT,
    ),
    "SETTING-DLEDGER": Check(
        ERROR,
        "The log is a DLedger log, and DLedger is off.",
        "Without enableDLegerCommitLog=true a broker begins a new log beside the old one and deletes the queues.",
        _EDIT + " The group, the peers and the own id (dLegerGroup, dLegerPeers, dLegerSelfId) must be set as before.",
    ),
    "SETTING-FORCED-CRC": Check(
        ERROR,
        "Records are held against a CRC property that they do not have.",
        "forceVerifyPropCRC makes a recovery cut the log at the first record without that property: those written "
        "before enabledAppendPropCRC was set, or by older brokers.",
        _EDIT + " Set it again when the last record without the property has expired.",
    ),
    "SETTING-STORE-PATH": Check(
        WARNING,
        "The settings name another store.",
        "storePathRootDir is not the folder that doctor looks at: a broker with these settings serves other messages.",
        _EDIT + " Or give doctor the store that the settings name.",
    ),
    "SETTING-ROCKSDB": Check(
        WARNING,
        "The queues lie in RocksDB, and the broker reads files.",
        "storeType=defaultRocksDB was set when the store was used last and is not any more, or the broker is a 4.9, "
        "which knows nothing of it.",
        _EDIT + " `mqtool rebuild queues --into DIR` makes the queues as files.",
    ),
    "SETTING-PERMISSION": Check(
        WARNING,
        "The whole broker is closed for reading or writing.",
        "brokerPermission is 4 (read), 2 (write) or 6 (both, the default). It is taken down for maintenance and then "
        "forgotten, by `mqadmin wipeWritePerm` in the name server alone until the broker starts again.",
        _EDIT,
    ),
    "SETTING-TIMER": Check(
        WARNING,
        "The timer is off.",
        "There are timer messages, and timerWheelEnable, timerStopEnqueue or timerStopDequeue keep the broker from "
        "taking them up or from delivering them.",
        _EDIT + " What came due meanwhile is delivered at once.",
    ),
    # Files of the log and the queues.
    "EMPTY-FILE": Check(
        ERROR,
        "A file was created and never filled: brokers before 5.1.3 do not take it.",
        "The broker, or the machine, ended between making a file and giving it its length.",
        "Move the file away, with the command that doctor prints; nothing is lost with it.",
    ),
    "QUEUE-TYPE": Check(
        ERROR,
        "Queues are of another type than topics.json says.",
        "The attribute queue.type of a topic decides between consumequeue and batchconsumequeue. topics.json was "
        "replaced or restored from another time, or the topic deleted and made again with another type.",
        "`mqtool rebuild config` sets the attribute by the queues that are there.",
    ),
    "LOG-OUT-OF-MEMORY": Check(
        ERROR,
        "A damaged size makes 4.9 end with an OutOfMemoryError.",
        "4.9 allocates as many bytes as a record says it has before it looks at anything else.",
        _FIRST_STOP + "`mqtool recover` bridges the place, or start a 5.x broker.",
    ),
    "LOG-SECOND-KIND": Check(
        ERROR,
        "Records of 5.1 and later: 4.9 takes them for damage.",
        "Topics with names of more than 127 bytes are written as records of a second kind. 4.9 cuts the log at the "
        "first of them and deletes all that follow.",
        "Start 5.1 or later on this store. To go back to 4.9, export the messages of the other topics and import them "
        "into a new store.",
    ),
    "LOG-DAMAGED": Check(
        ERROR,
        "A record is damaged: recovery takes the log to end there.",
        "A disk or controller lied about what it had written, a copy was cut short, or somebody wrote to the file. "
        "What was seen names the check (LOG-CRC, LOG-SIZES, ..), which `mqtool explain` tells more of.",
        _FIRST_STOP
        + "`mqtool recover` bridges the place, so that all messages behind it are kept; `mqtool salvage` copies "
        "what can be read into a new store.",
    ),
    # Delivery.
    "BATCH-QUEUES": Check(
        WARNING,
        "Topics with queues of batches: 4.9 does not know them.",
        "They were sent to a 5.x broker with queue.type=BatchCQ. 4.9 never looks into batchconsumequeue.",
        "Start 5.0 or later on this store, or export their messages.",
    ),
    "QUEUES-LOST": Check(
        WARNING,
        "Queues are gone: consumers do not get their messages.",
        "Somebody deleted the folder of a queue, or a copy lacks it. Brokers make all queues again when there is "
        "none at all (5.4 and later only those of the last ten segments), but never a single one: it begins anew at "
        "offset 0, and groups wait until it has passed what they have read.",
        "`mqtool recover --abnormal` fills them up from the whole log and keeps the places of messages that are lost; "
        "`mqtool rebuild queues` makes them again, byte for byte. Do it before a broker is started.",
    ),
    "TOPIC-PERMISSION": Check(
        WARNING,
        "A topic is closed for reading or writing.",
        "perm is 4 (read), 2 (write) or 6 (both). It is set so on purpose while a topic moves to another broker.",
        "`mqadmin updateTopicPerm` opens it, with the broker running.",
    ),
    "TOPIC-QUEUES": Check(
        WARNING,
        "A topic has no queues, or some that nobody reads.",
        "Producers take as many queues as writeQueueNums, consumers as many as readQueueNums: with fewer of these the "
        "messages of the last queues are never consumed.",
        "`mqadmin updateTopic` sets both, with the broker running; to shrink a topic lower the first, wait until "
        "all is consumed, then lower the second.",
    ),
    "GROUP-DISABLED": Check(
        WARNING,
        "A group of consumers is switched off.",
        "consumeEnable is false for it in subscriptionGroup.json: every pull is refused.",
        "`mqadmin updateSubGroup .. -s true` switches it on, with the broker running.",
    ),
    "HALF-STUCK": Check(
        WARNING,
        "Transactions wait for a decision that nobody asks for any more.",
        "A half message is checked back with its producer's group, up to transactionCheckMax times. Here some are "
        "over an hour older than the newest message and not decided: no producer of the group was there, or the op "
        "messages are lost.",
        "Look at them with the command that doctor prints; start a producer of their group, which a broker then asks.",
    ),
    "TIMER-DAMAGED": Check(
        WARNING,
        "Wheel or log of the timer are damaged: messages are not delivered in time.",
        "What was seen names the check (TIMER-..), which `mqtool explain` tells more of.",
        "The messages themselves lie in the topic rmq_sys_wheel_timer: pull them, and send those again that are due.",
    ),
    "START-REFUSED": Check(
        ERROR,
        "A broker does not start on this store.",
        "What `mqtool recover --as-broker` foretells, and none of the other causes: what was seen is the step of the "
        "start that fails.",
        "Run the command that doctor prints, then doctor again.",
    ),
    "START-HIDES": Check(
        WARNING,
        "A broker that is started leaves messages out of their queues: consumers do not get them.",
        "They are in the log and sound, but the broker dispatches only what lies behind the place where its recovery "
        "begins, and believes its queues for the rest (`mqtool recover --as-broker`).",
        "Run the command that doctor prints before you start a broker: it fills up the queues from the whole log.",
    ),
    # What misbehaves.
    "OFFSETS-LOST": Check(
        WARNING,
        "The consumer offsets are gone.",
        "consumerOffset.json and its backup are not there, though retry topics show that groups have consumed. They "
        "begin at the end or at the beginning of their queues, as consumeFromWhere says.",
        "Restore the file from a backup. `mqtool rebuild config` notes what the retry topics show, which may be far "
        "behind.",
    ),
    "DELAY-LOST": Check(
        WARNING,
        "How far delayed messages were delivered is lost.",
        "delayOffset.json and its backup are not there: a broker delivers all delayed messages that are kept once "
        "more.",
        "`mqtool rebuild config` makes the file from what was due, before a broker is started.",
    ),
    "CLOCK-AHEAD": Check(
        WARNING,
        "The store has messages of a time to come.",
        "The clock of the machine ran ahead when they were stored, or was set back since. Delays, search by time and "
        "retention go by these times.",
        "See that the clock is right (`timedatectl`, chrony). The messages stay as they are.",
    ),
}
