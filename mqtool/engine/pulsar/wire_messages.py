"""The commands of Pulsar's binary protocol, and the metadata of its messages, as protobuf.

Each message is one line below: fields as ``number name type``, with ``!`` for required, ``*`` for repeated and ``=x``
for a default. Enums are numbers here. The parser skips fields that are not listed, as clients may be newer than this.
(Rules: pulsar.md 2.)
"""

import re

MESSAGES = {
    "KeyValue": "1 key b!, 2 value b!",
    "IntRange": "1 start i32!, 2 end i32!",
    "Schema": "1 name s!, 3 schema_data b!, 4 type i32!, 5 properties KeyValue*",
    "MessageId": "1 ledgerId u64!, 2 entryId u64!, 3 partition i32=-1, 4 batch_index i32=-1, 5 ack_set i64*, "
    "6 batch_size i32",
    "FeatureFlags": "1 supports_auth_refresh bool=false, 4 supports_topic_watchers bool=false, "
    "5 supports_get_partitioned_metadata_without_auto_creation bool=false",
    "Connect": "1 client_version s!, 3 auth_data b, 4 protocol_version i32=0, 5 auth_method_name s, "
    "10 feature_flags FeatureFlags",
    "Connected": "1 server_version s!, 2 protocol_version i32=0, 3 max_message_size i32, 4 feature_flags FeatureFlags",
    "AuthData": "1 auth_method_name s, 2 auth_data b",
    "AuthChallenge": "1 server_version s, 2 challenge AuthData, 3 protocol_version i32=0",
    "AuthResponse": "1 client_version s, 2 response AuthData, 3 protocol_version i32=0",
    "Subscribe": "1 topic s!, 2 subscription s!, 3 subType i32!, 4 consumer_id u64!, 5 request_id u64!, "
    "6 consumer_name s, 7 priority_level i32, 8 durable bool=true, 9 start_message_id MessageId, "
    "11 read_compacted bool, 12 schema Schema, 13 initialPosition i32=0, 15 force_topic_creation bool=true, "
    "16 start_message_rollback_duration_sec u64=0, 17 keySharedMeta KeySharedMeta, "
    "18 subscription_properties KeyValue*, 19 consumer_epoch u64",
    "KeySharedMeta": "1 keySharedMode i32!, 3 hashRanges IntRange*, 4 allowOutOfOrderDelivery bool=false",
    "Producer": "1 topic s!, 2 producer_id u64!, 3 request_id u64!, 4 producer_name s, 5 encrypted bool=false, "
    "7 schema Schema, 8 epoch u64=0, 9 user_provided_producer_name bool=true, 10 producer_access_mode i32=0, "
    "11 topic_epoch u64, 13 initial_subscription_name s",
    "ProducerSuccess": "1 request_id u64!, 2 producer_name s!, 3 last_sequence_id i64=-1, 4 schema_version b, "
    "5 topic_epoch u64, 6 producer_ready bool=true",
    "Send": "1 producer_id u64!, 2 sequence_id u64!, 3 num_messages i32=1, 6 highest_sequence_id u64=0, "
    "7 is_chunk bool=false",
    "SendReceipt": "1 producer_id u64!, 2 sequence_id u64!, 3 message_id MessageId, 4 highest_sequence_id u64=0",
    "SendError": "1 producer_id u64!, 2 sequence_id u64!, 3 error i32!, 4 message s!",
    "Message": "1 consumer_id u64!, 2 message_id MessageId!, 3 redelivery_count u32=0, 4 ack_set i64*, "
    "5 consumer_epoch u64",
    "Ack": "1 consumer_id u64!, 2 ack_type i32!, 3 message_id MessageId*, 8 request_id u64",
    "AckResponse": "1 consumer_id u64!, 4 error i32, 5 message s, 6 request_id u64",
    "Flow": "1 consumer_id u64!, 2 messagePermits u32!",
    "Unsubscribe": "1 consumer_id u64!, 2 request_id u64!, 3 force bool=false",
    "Success": "1 request_id u64!",
    "Error": "1 request_id u64!, 2 error i32!, 3 message s!",
    "CloseProducer": "1 producer_id u64!, 2 request_id u64!",
    "CloseConsumer": "1 consumer_id u64!, 2 request_id u64!",
    "Nothing": "",
    "Redeliver": "1 consumer_id u64!, 2 message_ids MessageId*, 3 consumer_epoch u64",
    "PartitionedMetadata": "1 topic s!, 2 request_id u64!, 6 metadata_auto_creation_enabled bool=true",
    "PartitionedMetadataResponse": "1 partitions u32, 2 request_id u64!, 3 response i32, 4 error i32, 5 message s",
    "Lookup": "1 topic s!, 2 request_id u64!",
    "LookupResponse": "1 brokerServiceUrl s, 2 brokerServiceUrlTls s, 3 response i32, 4 request_id u64!, "
    "5 authoritative bool=false, 6 error i32, 7 message s, 8 proxy_through_service_url bool=false",
    "ConsumerStats": "1 request_id u64!, 4 consumer_id u64!",
    "ConsumerStatsResponse": "1 request_id u64!, 2 error_code i32, 3 error_message s, 7 consumerName s, "
    "8 availablePermits u64, 9 unackedMessages u64, 10 blockedConsumerOnUnackedMsgs bool, 11 address s, 13 type s, "
    "15 msgBacklog u64",
    "ReachedEnd": "1 consumer_id u64!",
    "Seek": "1 consumer_id u64!, 2 request_id u64!, 3 message_id MessageId, 4 message_publish_time u64",
    "GetLastMessageId": "1 consumer_id u64!, 2 request_id u64!",
    "GetLastMessageIdResponse": "1 last_message_id MessageId!, 2 request_id u64!, "
    "3 consumer_mark_delete_position MessageId",
    "ActiveConsumerChange": "1 consumer_id u64!, 2 is_active bool=false",
    "GetTopics": "1 request_id u64!, 2 namespace s!, 3 mode i32=0, 4 topics_pattern s, 5 topics_hash s",
    "GetTopicsResponse": "1 request_id u64!, 2 topics s*, 3 filtered bool=false, 4 topics_hash s, 5 changed bool=true",
    "GetSchema": "1 request_id u64!, 2 topic s!, 3 schema_version b",
    "GetSchemaResponse": "1 request_id u64!, 2 error_code i32, 3 error_message s, 4 schema Schema, 5 schema_version b",
    "GetOrCreateSchema": "1 request_id u64!, 2 topic s!, 3 schema Schema!",
    "GetOrCreateSchemaResponse": "1 request_id u64!, 2 error_code i32, 3 error_message s, 4 schema_version b",
    "Request": "1 request_id u64!",
    "WatchTopics": "1 request_id u64!, 2 watcher_id u64!, 3 namespace s!, 4 topics_pattern s!, 5 topics_hash s",
    "WatchTopicsSuccess": "1 request_id u64!, 2 watcher_id u64!, 3 topic s*, 4 topics_hash s!",
    "WatchTopicsUpdate": "1 watcher_id u64!, 2 new_topics s*, 3 deleted_topics s*, 4 topics_hash s!",
    "WatchTopicsClose": "1 request_id u64!, 2 watcher_id u64!",
    "MessageMetadata": "1 producer_name s!, 2 sequence_id u64!, 3 publish_time u64!, 4 properties KeyValue*, "
    "6 partition_key b, 8 compression i32=0, 9 uncompressed_size u32=0, 11 num_messages_in_batch i32=1, "
    "12 event_time u64=0, 13 encryption_keys b*, 17 partition_key_b64_encoded bool=false, 18 ordering_key b, "
    "19 deliver_at_time i64, 20 marker_type i32, 24 highest_sequence_id u64=0, 25 null_value bool=false, 26 uuid s, "
    "27 num_chunks_from_msg i32, 29 chunk_id i32, 30 null_partition_key bool=false",
    "SingleMetadata": "1 properties KeyValue*, 2 partition_key b, 3 payload_size i32!, 5 event_time u64=0, "
    "6 partition_key_b64_encoded bool=false, 7 ordering_key b, 9 null_value bool=false, "
    "10 null_partition_key bool=false",
    "BaseCommand": "1 type i32!, 2 connect Connect, 3 connected Connected, 4 subscribe Subscribe, 5 producer Producer, "
    "6 send Send, 7 send_receipt SendReceipt, 8 send_error SendError, 9 message Message, 10 ack Ack, 11 flow Flow, "
    "12 unsubscribe Unsubscribe, 13 success Success, 14 error Error, 15 close_producer CloseProducer, "
    "16 close_consumer CloseConsumer, 17 producer_success ProducerSuccess, 18 ping Nothing, 19 pong Nothing, "
    "20 redeliver Redeliver, 21 partitioned_metadata PartitionedMetadata, "
    "22 partitioned_metadata_response PartitionedMetadataResponse, 23 lookup Lookup, "
    "24 lookup_response LookupResponse, 25 consumer_stats ConsumerStats, "
    "26 consumer_stats_response ConsumerStatsResponse, 27 reached_end ReachedEnd, 28 seek Seek, "
    "29 get_last_message_id GetLastMessageId, 30 get_last_message_id_response GetLastMessageIdResponse, "
    "31 active_consumer_change ActiveConsumerChange, 32 get_topics GetTopics, "
    "33 get_topics_response GetTopicsResponse, 34 get_schema GetSchema, 35 get_schema_response GetSchemaResponse, "
    "36 auth_challenge AuthChallenge, 37 auth_response AuthResponse, "
    "38 ack_response AckResponse, "
    "39 get_or_create_schema GetOrCreateSchema, 40 get_or_create_schema_response GetOrCreateSchemaResponse, "
    "50 new_transaction Request, 52 add_partitions Request, 54 add_subscriptions Request, 56 end_transaction Request, "
    "62 connect_coordinator Request, 64 watch_topics WatchTopics, "
    "65 watch_topics_success WatchTopicsSuccess, 66 watch_topics_update WatchTopicsUpdate, "
    "67 watch_topics_close WatchTopicsClose",
}
"""Fields of each message, by our own names."""


_COMMANDS = [field.split() for field in MESSAGES["BaseCommand"].split(", ")[1:]]
TYPES = {name: int(number) for number, name, _ in _COMMANDS}
"""The number of each command, by our name for it."""
NAMES = {number: name for name, number in TYPES.items()}
TEXTS = {name: re.findall(r"\d+ (\w+) s\b", MESSAGES[kind]) for _, name, kind in _COMMANDS}
"""The text fields of each command: if the bytes are not UTF-8, parsing succeeds and the field contains bytes."""
