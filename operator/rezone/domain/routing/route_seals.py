"""How an old partition's record changes while its zone is re-sharded (docs/decisions/0120).

The record authorizes; the seal itself is an entry of the partition's log, and `sealed` is the fact
as the coordinator has heard of it. Functions and refusals as in `domain.routing.routes`.
"""

from rezone.domain.routing.routes import (
    Answer,
    Refusal,
    RefusalReason,
    highest_epoch,
    next_record,
)
from rezone.wire.messages import LeaderAndIsr


def authorize_seal(record: LeaderAndIsr, coordinator_epoch: int | None = None) -> Answer:
    """Return the record whose leader may seal its log.

    Refused while a takeover is authorized: only one of the two may end the leader's writes.
    """
    if record.sealing or record.sealed:
        return record
    if record.next_leader is not None:
        return Refusal(
            RefusalReason.TAKEOVER_AUTHORIZED, f"node {record.next_leader} may take over just now"
        )
    return next_record(record, coordinator_epoch, sealing=True)


def note_sealed(record: LeaderAndIsr, coordinator_epoch: int | None = None) -> Answer:
    """Return the record of a partition whose leader reports that its seal is committed.

    Also when the authorization was revoked meanwhile: the log decides.
    """
    if record.sealed:
        return record
    return next_record(record, coordinator_epoch, sealing=False, sealed=True)


def revoke_seal(record: LeaderAndIsr, coordinator_epoch: int | None = None) -> Answer:
    """Return the record whose leader may not seal any more, in the next leader epoch.

    That epoch fences a request that is still on its way. A seal that is in the log already stays
    there: whether it is, the leader says under the new epoch.
    """
    if record.sealed:
        return Refusal(RefusalReason.SEALED, "the partition has cut over")
    if not record.sealing:
        return record
    epoch = highest_epoch(record) + 1
    return next_record(record, coordinator_epoch, sealing=False, leader_epoch=epoch)
