"""Who gets which client number."""

import pytest

pytest.importorskip("flwr")

from fedgmr.flower.answers import Hello
from fedgmr.flower.server.roster import Roster


def make_roster(clients: int = 3, *, claims: bool = True, **online: str) -> Roster:
    return Roster(clients=clients, claims=claims, online={int(node[1:]): start for node, start in online.items()})


def test_a_partition_is_preferred_then_the_next_free_number() -> None:
    roster = make_roster(n1="a", n2="a", n3="a", n4="a")
    assert roster.admit(1, "a", Hello(partition=1)) == 1
    assert roster.admit(2, "a", Hello()) == 0
    assert roster.admit(3, "a", Hello(partition=17)) == 2
    assert roster.admit(4, "a", Hello()) is None
    assert roster.client_of(3) == 2
    assert roster.client_of(4) is None


def test_a_node_keeps_its_number_and_is_a_stranger_after_a_restart() -> None:
    roster = make_roster(n1="a", n2="a")
    assert roster.admit(1, "a", Hello(partition=2)) == 2
    assert roster.present(2)
    assert roster.strangers() == {2: "a"}
    roster.online = {1: "b"}
    assert not roster.present(2)
    assert roster.strangers() == {1: "b"}
    assert roster.admit(1, "b", Hello(partition=0)) == 2, "whatever it prefers now"
    assert roster.present(2)


def test_a_claim_waits_for_a_node_that_counts_as_online() -> None:
    roster = make_roster(n1="a", n9="a")
    roster.admit(1, "a", Hello(client_id="x", partition=1))
    again = Hello(client_id="x", partition=1)
    assert roster.admit(9, "a", again, patient=True) is None
    roster.online = {9: "a"}
    assert roster.admit(9, "a", again, patient=True) == 1
    assert roster.nodes[1].node == 9


def test_an_impatient_claim_gets_another_number() -> None:
    roster = make_roster(n1="a", n9="a")
    roster.admit(1, "a", Hello(client_id="x"))
    assert roster.admit(9, "a", Hello(client_id="x")) == 1
    assert roster.nodes[0].node == 1, "a node that is online is never pushed out"


def test_another_client_id_with_the_same_partition_is_another_client() -> None:
    roster = make_roster(n9="a")
    roster.admit(1, "a", Hello(client_id="x", partition=1))
    assert roster.admit(9, "a", Hello(client_id="y", partition=1), patient=True) == 0


def test_a_partition_alone_is_no_claim_to_a_client_that_has_an_id() -> None:
    roster = make_roster(n9="a")
    roster.admit(1, "a", Hello(client_id="x", partition=0))
    assert roster.admit(9, "a", Hello(partition=0), patient=True) == 1, "the next free number, not that of node 1"
    roster.online = {7: "a"}
    assert roster.admit(7, "a", Hello(client_id="x", partition=0)) == 0


def test_a_partition_alone_is_a_claim_too() -> None:
    roster = make_roster(n9="a")
    roster.admit(1, "a", Hello(partition=1))
    assert roster.admit(9, "a", Hello(partition=1)) == 1


def test_without_claims_only_the_node_id_counts() -> None:
    roster = make_roster(claims=False, n9="a", n8="a", n7="a")
    roster.admit(1, "a", Hello(client_id="x", partition=1))
    assert roster.admit(9, "a", Hello(client_id="x", partition=1)) == 0
    assert roster.admit(8, "a", Hello()) == 2
    assert roster.admit(7, "a", Hello()) is None, "an absent client's number is its own"


def test_only_a_node_nobody_could_know_again_leaves_its_number() -> None:
    roster = make_roster(2, n9="a")
    roster.admit(1, "a", Hello(client_id="x"))
    roster.admit(2, "a", Hello())
    assert roster.admit(9, "a", Hello(client_id="z")) == 1


def test_roster_survive_a_resume_and_must_say_hello_again() -> None:
    roster = make_roster(n1="a")
    roster.admit(1, "a", Hello(client_id="x", partition=2, samples=40, classes=(1, 3)))
    again = make_roster(n1="a")
    again.restore(roster.state())
    assert not again.present(2)
    assert again.strangers() == {1: "a"}
    assert again.nodes[2].hello.samples == 40
    assert again.nodes[2].hello.classes == (1, 3)
    assert again.admit(5, "c", Hello(client_id="x"), patient=True) is None
    assert again.admit(1, "a", Hello(client_id="x")) == 2
