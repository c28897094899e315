"""The file of accounts."""

import pytest

from mqtool.errors import FormatError
from mqtool.formats.plain_acl import ANY, DENY, PUB, SUB, Account, build_acl, parse_acl

# Laid out as in RocketMQ's own distribution.
TEXT = """\
# who may do what
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB

  - accessKey: rocketmq2
    secretKey: "12345678"
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n")])
def test_a_file_as_rocketmq_has_it_is_read(text: str) -> None:
    acl = parse_acl(text)

    assert acl.white_addresses == ("10.10.103.*", "192.168.0.*")
    assert [*acl.accounts.values()] == [
        Account(
            "RocketMQ",
            "12345678",
            default_group_perm=SUB,
            topic_perms={"topicA": DENY, "topicB": ANY, "topicC": SUB},
            group_perms={"groupA": DENY, "groupB": ANY},
        ),
        Account("rocketmq2", "12345678", "192.168.1.*", True),
    ]
    assert PUB | SUB == ANY


@pytest.mark.parametrize("text", ["accounts:\n", "accounts: []\nglobalWhiteRemoteAddresses:\n"])
def test_a_file_without_accounts_lets_nobody_in(text: str) -> None:
    assert parse_acl(text) == ({}, (), (0, 0))


@pytest.mark.parametrize(
    "text",
    [
        "accounts:\n- accessKey: short\n  secretKey: 12345678\n",
        "accounts:\n- accessKey: RocketMQ\n",
        "accounts:\n- RocketMQ\n",
        TEXT.replace("DENY", "ALLOW"),
        "accounts: all\n- accessKey: RocketMQ\n  secretKey: 12345678\n",
        "what is this\n",
        "accounts: [",
    ],
)
def test_a_file_that_says_something_else_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_acl(text)


# As a broker of 4.9.7 has written it after ``mqadmin updateAclConfig``: short lists and maps on one line.
WRITTEN = """\
globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.*]
dataVersion:
- {counter: 2, timestamp: 1795226173728}
accounts:
- accessKey: RocketMQ
  secretKey: '12345678'
  whiteRemoteAddress: ''
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [topicA=DENY, topicB=PUB|SUB, topicC=SUB]
  groupPerms: [groupA=DENY, groupB=PUB|SUB]
- {accessKey: rocketmq2, secretKey: '12345678', whiteRemoteAddress: 192.168.1.*, admin: true}
"""


def test_a_file_as_a_broker_writes_it_is_the_same() -> None:
    acl = parse_acl(WRITTEN)
    assert acl == parse_acl(TEXT)._replace(version=(2, 1_795_226_173_728))
    assert parse_acl(build_acl(acl)) == acl
