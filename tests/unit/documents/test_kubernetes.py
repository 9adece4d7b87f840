"""kubernetes.yaml: an image of agents for the CPU, or one for each execution provider; the ledger of gateways."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents.kubernetes import load_kubernetes, load_settings
from jellybean.errors import DocumentError


def written(folder: Path, agent: str) -> Path:
    text = f"kind: Kubernetes\nimages: {{agent: {agent}, gateway: g:1}}\nmodels: {{claim: models}}\n"
    (folder / "kubernetes.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("a:1", {"cpu": "a:1"}),
        ("{cpu: a:1, cuda: b:1}", {"cpu": "a:1", "cuda": "b:1"}),
        ("{XnnpackExecutionProvider: c:1}", {"XnnpackExecutionProvider": "c:1"}),
    ],
)
def test_images_are_read_by_provider_and_written_in_their_short_form(
    tmp_path: Path, text: str, images: dict[str, str]
) -> None:
    assert load_settings(written(tmp_path, text)).agent_images == images
    document = load_kubernetes(tmp_path)
    short, long = (document.model_dump(context={"long": long})["images"]["agent"] for long in (False, True))
    assert (short, long) == ("a:1" if images == {"cpu": "a:1"} else images, images)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{gpu: a:1}", "images.agent.*'gpu' is no device; write cpu, cuda, "),
        ("{'cuda:1': a:1}", "'cuda:1' has a number, but all devices of a provider have one image"),
        ("{CUDAExecutionProvider: a:1}", "'CUDAExecutionProvider' is called cuda"),
        ("{cuda: 'a 1'}", "images.agent.cuda: 'a 1' does not name an image"),
        ("{}", "images.agent: is empty"),
        ("[a]", "images.agent"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(DocumentError, match=problem):
        load_kubernetes(written(tmp_path, text))


def test_the_ledger_of_a_gateway_is_a_database(tmp_path: Path) -> None:
    path = written(tmp_path, "a:1") / "kubernetes.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text + "gateway: {ledger: {url: postgresql+psycopg://me@db/x, secret: own}}\n", encoding="utf-8")
    database = load_settings(tmp_path).gateway_ledger
    assert database is not None
    assert (database.url, database.secret) == ("postgresql+psycopg://me@db/x", "own")
    path.write_text(text + "gateway: {ledger: {url: ledger.db}}\n", encoding="utf-8")
    with pytest.raises(DocumentError, match=r"gateway\.ledger\.url: the ledger of pods is a database.*not ledger\.db"):
        load_settings(tmp_path)


@pytest.mark.parametrize("url", ["https://models.example:99999/x", "https://:443/x", "models.example/x"])
def test_a_url_of_models_can_be_fetched_from(tmp_path: Path, url: str) -> None:
    path = written(tmp_path, "a:1") / "kubernetes.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("claim: models", f"url: {url}"), encoding="utf-8")
    with pytest.raises(DocumentError, match=r"models\.url: .*(is not a URL|has no)"):
        load_settings(tmp_path)
