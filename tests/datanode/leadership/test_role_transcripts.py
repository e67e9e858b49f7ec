"""What a change of role persists before it takes effect, as scripts; and each crash in between."""

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from transcript import Scene, numbers, played, said, scenes, shown, titles

from rezone.datanode.core.roles import (
    Confirm,
    Effect,
    Emptied,
    EndStreams,
    Event,
    ForgetTransfer,
    HandedOver,
    Lead,
    Named,
    Notified,
    Persist,
    Refuse,
    Reset,
    Resumed,
    Sees,
    Take,
    TookOver,
    Upgraded,
    step,
)
from rezone.datanode.core.transfer import Side, Transfer
from rezone.storage.state.meta import PartitionMeta
from rezone.wire.messages import (
    NOBODY,
    FailoverEntry,
    Fence,
    LeaderAndIsr,
    Role,
    SetState,
    TakeoverState,
    UpgradeCandidate,
)

SCRIPT = "roles.txt"
NODE = 0
UNKNOWN = LeaderAndIsr(leader=NOBODY, leader_epoch=0, isr=(), coordinator_epoch=0)


def record_of(facts: dict[str, Any]) -> LeaderAndIsr:
    """Return the record that a line names."""
    return LeaderAndIsr(
        leader=facts["leader"],
        leader_epoch=facts["epoch"],
        partition_epoch=facts["revision"],
        isr=numbers(facts["isr"]),
        coordinator_epoch=1,
        next_leader=facts.get("next"),
        next_epoch=facts.get("next_epoch"),
    )


def event_of(name: str, facts: dict[str, Any]) -> Event:
    """Return the event that a line names."""
    fence = Fence(coordinator_epoch=facts.get("coordinator", 1))
    match name:
        case "notified" | "emptied":
            told = Notified if name == "notified" else Emptied
            return told(fence, record_of(facts))
        case "upgraded":
            request = UpgradeCandidate(
                fence=fence, partition=0, next_epoch=facts["epoch"], last_offset=facts["last"]
            )
            return Upgraded(request, facts.get("lacks", ""))
        case "named" | "handed_over":
            heard = Named if name == "named" else HandedOver
            return heard(facts["leader"], facts["epoch"])
        case "took_over":
            message = SetState(
                partition=0,
                state=TakeoverState.ACTIVE,
                leader_epoch=facts["epoch"] - 1,
                next_epoch=facts["epoch"],
                isr=numbers(facts["isr"]),
                replicas=numbers(facts["isr"]),
                end_offset=0,
            )
            return TookOver(message, facts["hold"])
        case _:
            return Resumed()


class Replica:
    """A replica that does what follows: its disk, and what it has in memory."""

    def __init__(self) -> None:
        self.disk = self.meta = PartitionMeta()
        self.record, self.role, self.leads = UNKNOWN, Role.LEARNER, False
        self.transfer = Transfer()
        self.log_end = 0
        self.branches = 0

    def restart(self) -> None:
        """Know what is on the disk, and nothing else."""
        self.meta = self.disk
        self.record, self.role = self.disk.leader_and_isr or UNKNOWN, Role.LEARNER
        self.leads, self.transfer = False, Transfer()

    def step(self, event: Event) -> list[Effect]:
        """Return what follows from an event."""
        self.branches += 1
        return step(
            event,
            Sees(
                node=NODE,
                meta=self.meta,
                record=self.record,
                role=self.role,
                leads=self.leads,
                transfer=self.transfer,
                over=False,
                log_end=self.log_end,
                floor=0,
                branch=f"branch{self.branches}",
                now=10.0,
            ),
        )

    def do(self, effect: Effect) -> None:
        """Do what follows."""
        match effect:
            case Reset():
                self.log_end = 0
                self._save({"needs_snapshot": True, "failover_log": ()}, durable=True)
            case Persist(changes, durable):
                self._save(changes, durable=durable)
            case ForgetTransfer():
                self.transfer = Transfer()
            case Take(record, role):
                self.record, self.role = record, role
            case Lead(dead=dead):
                self.leads = True
                if dead:
                    self.transfer = Transfer(side=Side.OLD, state=TakeoverState.DEAD)
            case EndStreams():
                self.leads = False

    def _save(self, changes: dict[str, Any], *, durable: bool) -> None:
        self.meta = msgspec.structs.replace(self.meta, **changes)
        if durable:
            self.disk = self.meta

    def outcome(self) -> tuple[object, ...]:
        """Return all that must be the same whatever has crashed: no name of a branch of history."""
        meta = msgspec.structs.replace(
            self.meta, failover_log=(), partition_uuid="", settled_epoch=0
        )
        return meta, self.record, self.role, self.leads, self.log_end


class Play:
    """One scene that is played."""

    def __init__(self) -> None:
        self.replica = Replica()

    def __call__(self, words: list[str]) -> Iterator[str]:
        """Yield what follows from a line, and the role after it."""
        event = self.prepare(words)
        if event is None:
            return
        replica, before = self.replica, self._standing()
        for effect in replica.step(event):
            yield self._shown(effect)
            replica.do(effect)
        if self._standing() != before:
            yield self._standing()

    def prepare(self, words: list[str]) -> Event | None:
        """Return the event of a line; None where it says only what there is."""
        name, *rest = words
        replica = self.replica
        if name == "transfer":
            side, state, *_ = rest
            replica.transfer = Transfer(side=Side[side.upper()], state=TakeoverState(state))
            return None
        facts = said(rest)
        if name == "disk":
            self._prepare_disk(facts)
        if name in {"disk", "restarted"}:
            replica.restart()
        return event_of(name, facts)

    def _prepare_disk(self, facts: dict[str, Any]) -> None:
        record = record_of(facts)
        self.replica.log_end = facts.get("log_end", 0)
        self.replica.disk = PartitionMeta(
            leader_and_isr=record,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            coordinator_epoch=1,
            role=Role(facts["role"]),
            needs_snapshot=facts.get("needs_copy", False),
            damage=facts.get("damage", ""),
            settled_epoch=facts.get("settled", 0),
            proposed=numbers(facts.get("proposed", "-")),
            failover_log=(FailoverEntry("branch", 0),),
            partition_uuid="branch",
        )

    def _standing(self) -> str:
        replica = self.replica
        dead = " (dead)" * replica.transfer.blocks_writes
        return f"now {replica.role.value}{dead} of epoch {replica.record.leader_epoch}"

    def _shown(self, effect: Effect) -> str:
        match effect:
            case Persist(changes, durable):
                known = msgspec.structs.asdict(self.replica.meta)
                new = {name: value for name, value in changes.items() if value != known[name]}
                new.pop("leader_and_isr", None)
                if "failover_log" in new:
                    new["failover_log"] = ",".join(
                        f"{each.partition_uuid}:{each.first_offset}" for each in new["failover_log"]
                    )
                if "role" in new:
                    new["role"] = new["role"].value
                how = "Persist" if durable else "Persist later"
                return f"{how}({' '.join(f'{name}={value}' for name, value in new.items())})"
            case Take(_, role):
                return f"Take({role.value})"
            case Confirm():
                return "Confirm()"
            case Lead(_, hold_until, saved, dead):
                return f"Lead(hold_until={hold_until} saved={saved} dead={dead})"
            case _:
                return shown(effect)


@pytest.mark.proves("ZR-17")
@pytest.mark.parametrize("scene", scenes(SCRIPT), ids=titles(SCRIPT))
def test_each_event_has_the_effects_that_the_script_says(scene: Scene) -> None:
    """Two replicas would lead in one epoch, or a leader write behind its candidate's back."""
    assert played(scene, Play()) == scene.lines


@pytest.mark.proves("ZR-13", "ZR-17")
@pytest.mark.parametrize("scene", scenes(SCRIPT), ids=titles(SCRIPT))
def test_a_call_that_is_repeated_after_any_crash_ends_where_one_call_does(scene: Scene) -> None:
    """What a crash leaves half done would be refused for ever, or be told before it is kept.

    The coordinator repeats a call that was not answered. Nothing is told to anybody before the
    disk has it. Only who is about to hand over ends elsewhere: a restart makes it dead, and the
    coordinator decides again.
    """
    play = Play()
    for line in scene.lines:
        if line.startswith("  "):
            continue
        event = play.prepare(line.split())
        if event is None:
            continue
        effects = play.replica.step(event)
        if isinstance(event, Notified | Upgraded | Emptied):
            _crash_everywhere(play.replica, event, effects)
        for effect in effects:
            play.replica.do(effect)


def _crash_everywhere(begun: Replica, event: Event, effects: list[Effect]) -> None:
    kinds = [type(effect) for effect in effects]
    if not effects or Refuse in kinds:
        return
    persisted = kinds.index(Persist)
    assert set(kinds[:persisted]) <= {Reset}, "it takes effect before it is on the disk"
    assert kinds.count(Persist) == 1, "a crash could come between two"
    ends = []
    for done in range(len(effects) + 1):
        replica = copy.copy(begun)
        for effect in effects[:done]:
            replica.do(effect)
        if done < len(effects):
            replica.restart()
            for effect in replica.step(Resumed()):
                replica.do(effect)
        for effect in replica.step(event):
            assert not isinstance(effect, Refuse), f"after {kinds[:done]}: {effect}"
            replica.do(effect)
        assert replica.disk == replica.meta
        ends.append(replica.outcome())
    if not begun.transfer.hands_over:
        assert all(end == ends[0] for end in ends)
