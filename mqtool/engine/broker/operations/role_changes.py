"""Changes of roles: a master stops accepting messages, a slave becomes master, or a master becomes a slave."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqtool.engine.broker.kept_role import KeptRole, write_role
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.settings import MASTER_ID, Role
from mqtool.engine.broker.state import BrokerState
from mqtool.errors import MqtoolError

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

log = logging.getLogger(__name__)


class RoleChanges:
    """Changes of the role of one broker; its owner carries them out (``on_change``) and restarts it."""

    def __init__(self, store: "MessageStore", state: BrokerState) -> None:
        self.on_change: Callable[[KeptRole], None] | None = None
        self.on_cut: Callable[[int, KeptRole], str] | None = None
        """Called with the new end of this slave's log and its role; returns why that is not possible."""
        self._store = store
        self._state = state
        self._is_changing = False
        self._is_stopped = False
        self._stopped_for = (0, 0)  # id and epoch
        self._seen_epoch = 0  # of another master, while this one was stopped
        self.is_replaced = False
        """Whether another broker has become the master in the meantime: this one accepts no messages any more."""

    def stop_messages(self, slave_id: int = 0, epoch: int = 0) -> int:
        """Stop accepting messages, and return the end of the log.

        Args:
            slave_id: of the slave that is to become the master; the same promotion may be tried again.
            epoch: of that change.

        Raises:
            OperationRefusedError: this is not a master, or stopped for another slave, which may be the master by now.
        """
        if self._state.role is Role.SLAVE:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, "this broker is a slave: it accepts no messages")
        if self._is_stopped and self._stopped_for != (slave_id, epoch):
            raise OperationRefusedError(
                Reason.NOT_POSSIBLE,
                f"this broker has already stopped for slave {self._stopped_for[0]} to become the master: promote that "
                "one, or restart this broker if that promotion was ended",
            )
        self._store.take_only_copies()
        self._is_stopped, self._stopped_for = True, (slave_id, epoch)
        log.warning("messages are no longer accepted: another broker is to become the master")
        return self._store.log.end_offset

    def take_messages(self) -> int:
        """Accept messages again after a cancelled change, and return the end of the log.

        Raises:
            OperationRefusedError: this is not a master, or no longer one.
        """
        if self._state.role is Role.SLAVE or self._is_changing or self.is_replaced:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, "this broker is not a master")
        self._store.take_messages()
        self._is_stopped = False
        log.warning("messages are accepted again")
        return self._store.log.end_offset

    def learn(self, epoch: int) -> None:
        """Save the epoch that the master of this slave knows: others may ask this broker when the master is gone.

        Raises:
            WriteError: it cannot be saved.
        """
        state = self._state
        if epoch > state.epoch and state.role is Role.SLAVE and not self._is_changing:
            write_role(self._store.root, KeptRole(state.role, state.broker_id, epoch, *state.configured))
            state.epoch = epoch

    def step_down(self, epoch: int, address: str) -> None:
        """Stop being the master, because another broker has become it; a broker that is set to be a slave becomes one.

        Args:
            epoch: of the other master, not below that of this broker.
            address: of a broker that knows it.
        """
        if self._is_changing or self.is_replaced:
            return
        if self._is_stopped and self._seen_epoch != epoch:  # the promotion under way tells this broker, or has ended
            self._seen_epoch = epoch
            return
        role, broker_id = self._state.configured
        if role is Role.SLAVE:
            log.warning("there is another master since epoch %d, according to %s", epoch, address)
            try:
                self._change(KeptRole(role, broker_id, epoch, role, broker_id))
            except OperationRefusedError as error:
                log.error("%s", error)
            return
        self.is_replaced = True
        self._store.take_only_copies()
        log.error(
            "there is another master since epoch %d, according to %s, and this broker is at epoch %d: it no longer "
            "accepts messages; restart it with brokerRole=SLAVE and a brokerId above 0",
            epoch,
            address,
            self._state.epoch,
        )

    def cut(self, at: int) -> str:
        """Restart this slave without the end of its log, which is set aside; return why that is not possible."""
        if self._is_changing or self.on_cut is None:
            return "the role of this broker is already being changed, or cannot be changed"
        state = self._state
        if reason := self.on_cut(at, KeptRole(state.role, state.broker_id, state.epoch, *state.configured)):
            return reason
        self._is_changing = True
        return ""

    def become(self, role: Role, broker_id: int, epoch: int) -> int:
        """Restart this broker in another role, and return the end of its log.

        Args:
            role: the new role.
            broker_id: of a slave, above 0.
            epoch: of this change, above those of all earlier ones.

        Raises:
            OperationRefusedError: it is not possible; the role is unchanged.
        """
        state = self._state
        if epoch <= state.epoch:
            raise OperationRefusedError(
                Reason.NOT_POSSIBLE, f"epoch {epoch} is not above {state.epoch}, the epoch of this broker"
            )
        if (role is Role.SLAVE) != (broker_id > MASTER_ID):
            raise OperationRefusedError(
                Reason.BAD_ARGUMENT, f"{role} with the id {broker_id}: the id of a master must be {MASTER_ID}"
            )
        self._change(KeptRole(role, broker_id, epoch, *state.configured))
        return self._store.log.end_offset

    def _change(self, kept: KeptRole) -> None:
        if self._is_changing or self.on_change is None:
            raise OperationRefusedError(
                Reason.NOT_POSSIBLE, "the role of this broker is already being changed, or cannot be changed"
            )
        try:
            write_role(self._store.root, kept)
        except MqtoolError as error:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, str(error)) from None
        self._is_changing, self._state.epoch = True, kept.epoch
        self._store.take_only_copies()
        log.warning("this broker becomes %s, id %d, epoch %d", kept.role, kept.broker_id, kept.epoch)
        self.on_change(kept)
