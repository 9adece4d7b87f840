"""Random edits that change nothing measured: no profile becomes stale."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from jellybean.documents import build_problem, load_project, machine_notes
from tests.support.examples import examples
from tests.support.measured_project import MODULE, STEPS, make_project

pytestmark = pytest.mark.slow

EDITS_TOGETHER = 4
Documents = dict[str, Any]
Edit = Callable[[Documents, random.Random], None]


def _shuffled(value: Any, rng: random.Random) -> Any:
    """The same value with the keys of all maps in another order."""
    if isinstance(value, dict):
        return {key: _shuffled(value[key], rng) for key in rng.sample(list(value), len(value))}
    return [_shuffled(item, rng) for item in value] if isinstance(value, list) else value


def keys_in_another_order(documents: Documents, rng: random.Random) -> None:
    for name in ("workflow", "infrastructure"):
        documents[name] = _shuffled(documents[name], rng)


def profiles_in_another_order(documents: Documents, rng: random.Random) -> None:
    runs = documents["profiles"].pop("runs")  # the order of variants in a run says which were measured together
    documents["profiles"] = {**_shuffled(documents["profiles"], rng), "runs": runs}


def prices(documents: Documents, rng: random.Random) -> None:
    for pool in documents["infrastructure"]["workers"].values():
        pool["price"] = f"{rng.uniform(0.01, 5):.4f} USD/h"


def counts(documents: Documents, rng: random.Random) -> None:
    for pool in documents["infrastructure"]["workers"].values():
        pool["count"] = rng.randrange(1, 40)


def memory(documents: Documents, rng: random.Random) -> None:
    documents["infrastructure"]["workers"]["box"]["memory"] = f"{rng.randrange(1, 64)} GiB"


def sharing(documents: Documents, rng: random.Random) -> None:
    documents["infrastructure"]["workers"]["gpu"]["sharing"] = rng.choice(["shared", "exclusive"])


def links(documents: Documents, rng: random.Random) -> None:
    link = documents["infrastructure"]["links"][0]
    link |= {"price": f"{rng.uniform(0, 2):.3f} USD/GiB", "bandwidth": f"{rng.randrange(1, 900)} Mbit/s"}
    link["latency"] = f"{rng.randrange(1, 200)} ms"


def limits(documents: Documents, rng: random.Random) -> None:
    documents["infrastructure"]["limits"] = {"utilisation": round(rng.uniform(0.3, 1), 2), "batch": rng.randrange(1, 9)}


def migration(documents: Documents, rng: random.Random) -> None:
    documents["infrastructure"]["migration"] = {"start": f"{rng.uniform(0, 1):.3f} USD"}


def a_pool_of_a_known_type(documents: Documents, rng: random.Random) -> None:
    more = {"tier": rng.choice(["edge", "cloud"]), "count": 3, "price": "0.2 USD/h", "type": "box", "speed": 0.5}
    documents["infrastructure"]["workers"][f"more-{rng.randrange(99)}"] = more


def without_a_pool(documents: Documents, rng: random.Random) -> None:
    documents["infrastructure"]["workers"]["gpu"]["count"] = 0


def sites(documents: Documents, rng: random.Random) -> None:
    documents["infrastructure"]["sites"] = {"edge": rng.randrange(1, 50)}


def slo(documents: Documents, rng: random.Random) -> None:
    documents["workflow"]["slo"] = {"accuracy": rng.randrange(10, 90), "budget": f"{rng.randrange(1, 90)} USD/h"}
    documents["workflow"]["slo"]["latency_p99"] = f"{rng.randrange(1, 9)} s"


def rates(documents: Documents, rng: random.Random) -> None:
    rate = f"{rng.uniform(0.1, 90):.3f}/s"
    for source in documents["workflow"]["sources"].values():
        source["rate"] = rate


def arrivals(documents: Documents, rng: random.Random) -> None:
    arrival = rng.choice(["poisson", "periodic"])
    for source in documents["workflow"]["sources"].values():
        source["arrivals"] = arrival


def size_of_requests(documents: Documents, rng: random.Random) -> None:
    documents["workflow"]["sources"]["right"]["message"] = f"{rng.randrange(1, 900)} KiB"


def stays(documents: Documents, rng: random.Random) -> None:
    documents["workflow"]["sources"]["left"]["stays_in"] = ["edge", "cloud"]


def descriptions(documents: Documents, rng: random.Random) -> None:
    documents["workflow"]["description"] = f"text {rng.random()}"
    documents["infrastructure"]["description"] = f"text {rng.random()}"
    documents["workflow"]["name"] = f"gate-{rng.randrange(1000)}"


def ratio(documents: Documents, rng: random.Random) -> None:
    edges = documents["workflow"]["operators"]["sum"]["inputs"]
    edges[0]["ratio"] = rng.choice([round(rng.uniform(0.2, 8), 2), {"few": 1.5, "many": rng.uniform(2, 4)}])


def batches(documents: Documents, rng: random.Random) -> None:
    documents["workflow"]["operators"]["prepare"] |= {"batch": rng.randrange(1, 9), "batch_delay": "5 ms"}


def tiers(documents: Documents, rng: random.Random) -> None:
    documents["workflow"]["operators"]["all"]["tiers"] = rng.choice([["edge", "cloud"], ["cloud"]])


def cuts(documents: Documents, rng: random.Random) -> None:
    documents["workflow"]["operators"]["compare"]["cuts"] = rng.choice([0, 1, 2, "auto"])


def the_first_output_by_name(documents: Documents, rng: random.Random) -> None:
    documents["workflow"]["operators"]["split"]["inputs"] = [{"from": "prepare", "output": "y"}]


def an_edge_in_its_long_form(documents: Documents, rng: random.Random) -> None:
    documents["workflow"]["operators"]["compare"]["inputs"] = [{"from": "left"}, {"from": "right"}]


def models_in_another_folder(documents: Documents, rng: random.Random) -> None:
    operators = documents["workflow"]["operators"]
    operators["sum"]["variants"]["net"]["model"] = "weights/sum-v2.onnx"


def data_in_another_file(documents: Documents, rng: random.Random) -> None:
    workflow = documents["workflow"]
    for name, holder in (("left", workflow["sources"]["left"]), ("labels", workflow)):
        key = "inputs" if name == "left" else "labels"
        if key in holder:
            holder[key] = f"data/compressed.npz#{name}"


def without_data(documents: Documents, rng: random.Random) -> None:
    """Deployed without the held-out data: there is nothing to compare with."""
    documents["workflow"]["sources"]["left"].pop("inputs", None)
    without_labels(documents, rng)


def without_labels(documents: Documents, rng: random.Random) -> None:
    documents["workflow"].pop("labels", None)
    documents["workflow"].pop("labels_of", None)
    documents["workflow"].pop("metric", None)


def hand_written_figures(documents: Documents, rng: random.Random) -> None:
    entry = documents["profiles"]["operators"]["all"]["net"]
    entry["latency"]["box"] = f"{rng.randrange(1, 90)} ms"
    entry["provenance"]["latency"]["box"] = {"source": rng.choice(["by hand", "data sheet"])}


def imported_figures(documents: Documents, rng: random.Random) -> None:
    """Figures for a type that this fleet does not have."""
    documents["profiles"]["operators"]["sum"]["net"]["latency"]["orin-nano-8"] = "3 ms"


EDITS: tuple[Edit, ...] = (
    *(keys_in_another_order, profiles_in_another_order, prices, counts, memory, sharing, links, limits, migration),
    *(a_pool_of_a_known_type, without_a_pool, sites, slo, rates, arrivals, size_of_requests, stays, descriptions),
    *(ratio, batches, tiers, cuts, the_first_output_by_name, an_edge_in_its_long_form, models_in_another_folder),
    *(data_in_another_file, without_data, without_labels, hand_written_figures, imported_figures),
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project; also with copies of a model and of the data under other names."""
    folder = make_project_on_path(tmp_path_factory.mktemp("harmless"))
    (folder / "weights").mkdir()
    shutil.copy(folder / "models/sum.onnx", folder / "weights/sum-v2.onnx")
    with np.load(folder / "data/heldout.npz") as data:
        np.savez_compressed(folder / "data/compressed.npz", **data)
    return folder


def make_project_on_path(base: Path) -> Path:
    """The project beside its module, which is put on the path for the whole session."""
    import sys

    (base / "steps").mkdir()
    (base / "steps" / f"{MODULE}.py").write_text(STEPS, encoding="utf-8")
    sys.path.insert(0, str(base / "steps"))
    return make_project(base / "gate")


@settings(max_examples=examples(60, nightly=200))
@given(st.integers(0, 2**32), st.lists(st.sampled_from(EDITS), min_size=1, max_size=EDITS_TOGETHER, unique=True))
def test_no_harmless_edit_makes_a_profile_stale(original: Path, seed: int, edits: list[Edit]) -> None:
    rng = random.Random(seed)
    yaml = YAML(typ="safe")
    names = ("workflow", "infrastructure", "profiles")
    texts = {name: (original / f"{name}.yaml").read_text(encoding="utf-8") for name in names}
    documents = {name: yaml.load(text) for name, text in texts.items()}
    for edit in edits:
        edit(documents, rng)
    try:
        for name, document in documents.items():
            with (original / f"{name}.yaml").open("w", encoding="utf-8") as file:
                file.write(f"# a comment of {rng.random()}\n")
                yaml.dump(document, file)
        project = load_project(original)
        assert [str(entry) for entry in project.stale] == []
        assert machine_notes(project) == ()
        assert build_problem(project).stale_profiles == ()
    finally:
        for name, text in texts.items():
            (original / f"{name}.yaml").write_text(text, encoding="utf-8")


def test_every_harmless_edit_is_one(original: Path) -> None:
    """Each edit alone, so that none of them only ever runs beside another."""
    for edit in EDITS:
        test_no_harmless_edit_makes_a_profile_stale.hypothesis.inner_test(original, 1, [edit])
