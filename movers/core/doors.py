"""Who must show a ticket at the data port, and whether the one that is shown is good. Pure."""

from __future__ import annotations

from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import (
    Challenge,
    Presented,
    Refusal,
    Ticket,
    TicketRefused,
    check_ticket,
)


def needs_ticket(view: ClusterView, caller: NodeId | None) -> bool:
    """Whether a caller that calls itself so must show one; None: an application. Movers of a
    release that knows no tickets joined without a key: while one is up it is served as before, and
    so are applications, which may be on its node."""
    if caller is None:
        return not any(
            node.status is NodeStatus.UP and not node.ticket_key for node in view.nodes.values()
        )
    known = view.nodes.get(caller)
    return known is None or known.status is not NodeStatus.UP or bool(known.ticket_key)


def is_expected(view: ClusterView, ticket: Ticket) -> bool:
    """Whether the view knows the life of which the ticket speaks, or a later one."""
    known = view.nodes.get(ticket.node)
    return known is not None and known.epoch >= ticket.epoch


def judge(
    view: ClusterView, shown: Presented, source: NodeId, challenge: Challenge, at: float
) -> Ticket:
    """The ticket, if its node is known, in this life, and signed it for this challenge. A node that
    was only declared lost may go on: nothing is known against its key. Raises TicketRefused."""
    ticket = shown.ticket
    known = view.nodes.get(ticket.node)
    if known is None or known.epoch < ticket.epoch:
        raise TicketRefused(Refusal.UNKNOWN, source, ticket.node)
    if known.epoch > ticket.epoch or known.status is NodeStatus.LEFT:
        raise TicketRefused(Refusal.FENCED, source, ticket.node)
    return check_ticket(shown, known.ticket_key, source, challenge, at)
