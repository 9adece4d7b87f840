"""Where the key of a run with parameter servers comes from."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import TrainingDocument
from jellybean.training import TrainingError
from jellybean.training.parameter_server.rendezvous import KEY, STORE, Rendezvous, key_from_environment
from jellybean.training.parameter_server.roles import role_of_process

SECRET = "0123456789abcdef" * 2
LOOPBACKS = ("127.0.0.1", "127.0.0.2", "::1")
DOCUMENT = {
    "kind": "Training",
    "model": "nets.py:net",
    "data": "nets.py:data",
    "loss": "mse",
    "epochs": 1,
    "batch": 4,
    "replicas": 2,
    "optimizer": {"name": "sgd", "lr": 1},
}


def _document(address: str) -> TrainingDocument:
    return TrainingDocument.model_validate({**DOCUMENT, "sync": {"way": "parameter-server", "address": address}})


@pytest.mark.parametrize("environment", [{}, {KEY: SECRET[:-1]}, {KEY: ""}])
def test_servers_that_others_can_reach_do_not_start_without_a_key(environment):
    with pytest.raises(TrainingError, match=f"{KEY}.*secrets.token_hex"):
        key_from_environment("10.0.0.5", environment)


@pytest.mark.parametrize("address", ["10.0.0.5", *LOOPBACKS])
def test_a_key_of_the_environment_is_taken(address):
    assert key_from_environment(address, {KEY: SECRET}) == SECRET.encode()


def test_a_short_key_is_refused_on_loopback_too():
    with pytest.raises(TrainingError, match="fewer than 32 characters"):
        key_from_environment("127.0.0.1", {KEY: "short"})


@pytest.mark.parametrize("address", LOOPBACKS)
def test_on_loopback_the_store_has_the_key(address):
    assert key_from_environment(address, {}) is None


def test_our_launchers_store_has_the_key():
    assert key_from_environment("10.0.0.5", {STORE: "/nowhere"}) is None


def test_a_process_of_torchrun_is_refused_before_it_loads_anything(monkeypatch):
    for name in (STORE, KEY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(TrainingError, match=KEY):
        role_of_process(_document("10.0.0.5"))
    monkeypatch.setenv(KEY, SECRET)
    assert role_of_process(_document("10.0.0.5")).serves


def test_torchruns_store_never_gets_the_key_of_the_environment(monkeypatch):
    monkeypatch.delenv(STORE, raising=False)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", KEY: SECRET}.items():
        monkeypatch.setenv(name, value)
    meeting = Rendezvous(_document("10.0.0.5"))
    assert meeting.make_key() == meeting.key() == SECRET.encode()
    assert not meeting._store.check(["key"])
