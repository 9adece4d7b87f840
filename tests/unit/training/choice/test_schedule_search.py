"""The search of `schedule: auto`: what it considers, what it tries next, and that the fastest wins."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.cli.training.run import note_of_finished, notes_on_devices, with_processes
from jellybean.documents import OptimizerSpec, TrainingDocument
from jellybean.documents.training import EarlyStopSpec
from jellybean.errors import DocumentError
from jellybean.pipeline import TorchProfile
from jellybean.training import Candidate, LinkSpeed, MeasuredCosts, enumerate_candidates
from jellybean.training.choice.compression import compressions
from jellybean.training.choice.costs import Prices, schedule_costs
from jellybean.training.choice.decide import Predictor, _listed, fitting_together
from jellybean.training.choice.profiles import SizedProfiles
from jellybean.training.choice.report import choice_note
from jellybean.training.choice.search import Search, SearchLimits
from jellybean.training.choice.trial import RankTimes, measured_costs
from jellybean_solver.pipeline import (
    COLLECTIVES,
    ONE_DEVICE_SCHEDULE,
    SCHEDULES,
    ActionKind,
    Layer,
    LayerGraph,
    ScheduleCosts,
    bubble_fraction,
    make_schedule,
    simulate,
)
from tests.support.examples import examples

LINK = LinkSpeed(1e9, 1e-4)


def document(**more: object) -> TrainingDocument:
    own = {"kind": "Training", "model": "a:b", "data": "a:b", "epochs": 1, "batch": 64}
    return TrainingDocument(**{**own, "optimizer": OptimizerSpec(name="sgd", lr=0.1), **more})


def profile(size: int = 8, layers: int = 8) -> TorchProfile:
    """Layers of 1 ms and 2 ms for 8 samples, half of it fixed, with 1 kB of weights each."""
    share = 0.5 + size / 16
    chain = tuple(Layer(str(i), share * 1e-3, share * 2e-3, 100.0 * size, 1000.0) for i in range(layers))
    graph = LayerGraph(chain, tuple((i, i + 1) for i in range(layers - 1)))
    members = tuple((str(i),) for i in range(layers))
    return TorchProfile(graph, {}, "fx", members, (1000.0,) * layers, torch.device("cpu"))


def predictor(asked: TrainingDocument, link: LinkSpeed = LINK) -> Predictor:
    return Predictor(asked, SizedProfiles.measured((1, 64), profile), 1.0, link)


def search(times: dict[Candidate, float], predicted: dict[Candidate, float] | None = None, **limits: float) -> Search:
    """A search that is over: trials measure `times`."""
    made = Search(list(times), lambda one, _: (predicted or times)[one], SearchLimits(**limits))
    while (candidate := made.next()) is not None:
        made.record(candidate, times[candidate], 0.1, made.measured)
    return made


class TestCandidates:
    def test_given_sizes_are_kept(self):
        found, rejected = enumerate_candidates(document(devices=2, microbatches=8), 2)
        assert {one.sizes for one in found} == {(2, 1, 1, 8)}
        assert {one.schedule for one in found} | rejected.keys() == set(SCHEDULES)
        assert all("staleness" in why for why in rejected.values())

    def test_a_given_schedule_is_kept(self):
        found, _ = enumerate_candidates(document(parallel="auto", schedule="gpipe"), 2)
        assert {one.schedule for one in found} == {"gpipe"}

    def test_all_layouts_of_fewer_processes(self):
        found, _ = enumerate_candidates(document(parallel="auto"), 4)
        layouts = {one.layout for one in found}
        whole = {(1, 1, 1), (1, 2, 1), (1, 4, 1), (2, 1, 1), (2, 2, 1), (3, 1, 1), (4, 1, 1)}  # 64 / 3 has a remainder
        assert layouts == whole | {(1, 1, 2), (1, 2, 2), (2, 1, 2), (1, 1, 3), (1, 1, 4)}
        assert {one.schedule for one in found if one.devices == 1} == {ONE_DEVICE_SCHEDULE}
        assert all(document().batch % (one.microbatches * one.replicas) == 0 for one in found)

    def test_what_is_given_stays_with_parallel_auto(self):
        found, _ = enumerate_candidates(document(parallel="auto", devices=2, microbatches=4), 4)
        assert {one.sizes for one in found} == {(2, 1, 1, 4), (2, 2, 1, 4), (2, 1, 2, 4)}

    def test_a_given_tensor_size_is_kept(self):
        asked = document(parallel="auto", tensor=2)
        found, _ = enumerate_candidates(asked, 4)
        assert {one.layout for one in found} == {(1, 1, 2), (1, 2, 2), (2, 1, 2)}
        assert {one.applied(asked).ranks for one in found} == {2, 4}
        assert str(Candidate(1, 2, 4, "1f1b", tensor=2)) == "1f1b, 1 device x 2 replicas x tensor 2, 4 micro-batches"
        with pytest.raises(ValueError, match="processes is 3, and devices x replicas x tensor 4"):
            document(parallel="auto", tensor=4, processes=3)
        with pytest.raises(ValueError, match="not for plans, `conv: data`"):
            document(parallel="auto", tensor={"ways": 2, "conv": "data"})

    def test_the_candidate_leaves_nothing_open(self):
        asked = document(parallel="auto", processes=4)
        decided = Candidate(2, 1, 8, "interleaved", 3).applied(asked)
        assert (decided.ranks, decided.devices, decided.microbatches, decided.chunks) == (2, 2, 8, 3)
        assert not any(decided.leaves_open(key) for key in ("devices", "replicas", "microbatches"))
        assert (decided.batch, asked.ranks) == (64, 4)

    def test_compress_auto_is_not_for_plans(self):
        with pytest.raises((DocumentError, ValueError), match="not for plans"):
            document(compress="auto", objective="dapple", devices=2)

    def test_processes_alone_mean_nothing(self):
        with pytest.raises((DocumentError, ValueError), match="parallel: auto"):
            document(processes=2)


class TestSearch:
    FAST, SLOW, ONE = Candidate(2, 1, 4, "1f1b"), Candidate(2, 1, 4, "naive"), Candidate(1, 1, 1, ONE_DEVICE_SCHEDULE)

    def test_the_fastest_wins_and_one_process_is_tried_first(self):
        seconds = {self.FAST: 1.0, self.SLOW: 3.0, self.ONE: 2.0}
        made = search(seconds)
        assert made.best == self.FAST
        assert next(iter(made.trials)) == self.ONE
        assert self.SLOW not in made.trials  # predicted to be slower than what was measured

    def test_one_process_where_it_is_faster(self):
        """Predictions that leave out what two processes cost are corrected by trials."""
        seconds = {self.FAST: 5.0, self.SLOW: 6.0, self.ONE: 2.0}
        made = search(seconds, {self.FAST: 1.0, self.SLOW: 1.9, self.ONE: 2.0})
        assert made.best == self.ONE
        assert choice_note(made, made.best, 2).startswith("one process is fastest: 1f1b, 1 device x 1 replica")
        assert choice_note(made, made.best, 2).endswith("1 process of 2 ends now")

    def test_a_number_of_processes_is_not_given_up_after_one_trial(self):
        """The first trial with two processes was slowed, and what it taught makes all others with two look slow."""
        candidates = [self.ONE, self.SLOW, self.FAST]
        hoped = {self.ONE: 2.0, self.SLOW: 1.2, self.FAST: 1.3}

        def predicted(one: Candidate, measured: MeasuredCosts) -> float:
            return hoped[one] * measured.slowdown_of(one.processes)

        made, times = Search(candidates, predicted), {self.ONE: 2.0, self.SLOW: 7.0, self.FAST: 1.4}
        while (candidate := made.next()) is not None:
            taught = MeasuredCosts(slowdown={1: 1.0} if candidate == self.ONE else {1: 1.0, 2: 6.0})
            made.record(candidate, times[candidate], 0.1, taught)
        assert list(made.trials) == candidates
        assert made.best == self.FAST
        hopeless = search(
            {self.ONE: 2.0, self.SLOW: 7.0, self.FAST: 7.5}, {self.ONE: 2.0, self.SLOW: 1.2, self.FAST: 2.5}
        )
        assert self.FAST not in hopeless.trials

    def test_one_candidate_is_no_plural(self):
        made = search({self.FAST: 1.0})
        assert choice_note(made, made.best, 2) == "1f1b is fastest: 1.00 s a batch (the only candidate)"

    @pytest.mark.parametrize("seed", range(examples(20)))
    def test_the_argmin_where_processes_share_cores(self, seed):
        """Predictions leave out that more processes slow each other."""
        candidates, _ = enumerate_candidates(document(parallel="auto"), 4)
        draws = torch.rand(len(candidates), generator=torch.Generator().manual_seed(seed)).add(0.1).tolist()
        predicted = dict(zip(candidates, draws, strict=True))
        seconds = {one: value * (1.0 + one.processes / 4) for one, value in predicted.items()}
        made = search(seconds, predicted)
        assert made.best == min(seconds, key=seconds.__getitem__)
        assert len(made.trials) < len(candidates)

    def test_limits(self):
        """Of many alike candidates, as many as allowed are tried, and the finalists again."""
        alike = {Candidate(2, 1, 2**power, "1f1b"): 1.0 + power / 100 for power in range(8)}
        wrong = {one: (2.0 - seconds) / 10 for one, seconds in alike.items()}
        made = search(alike, wrong, trials=4, explored=9)
        assert len(made.trials) == 4
        assert len(search(alike, wrong, explored=9, seconds=0.15).trials) == 2
        assert not search(alike, trials=0).trials

    def test_finalists(self):
        """The close ones race, and what the race shows decides: a trial may have been slowed by other programs."""
        alike = {Candidate(2, 1, 2**power, "1f1b"): 1.0 + power / 2 for power in range(4)}
        made = search(alike, dict.fromkeys(alike, 0.1), explored=9, close=1.6, finalists=9)
        assert [made.seconds(one) for one in made.finalists] == [1.0, 1.5]
        first, second = made.finalists
        made.settle({first: 2.9, second: 2.8})
        assert made.best == second  # also where one that did not race has a shorter trial
        assert made.seconds(second) == 2.8
        assert not search({self.ONE: 1.0, self.FAST: 9.0}).finalists  # only one was tried

    def test_each_number_of_processes_has_a_finalist(self):
        """Whatever a trial of one process was slowed to, the race compares it."""
        times = {self.ONE: 9.0, self.FAST: 1.0, self.SLOW: 1.1, Candidate(4, 1, 4, "1f1b"): 2.0}
        made = search(times, dict.fromkeys(times, 0.1), explored=9, finalists=1)
        assert set(made.finalists) == set(times)
        made = search(times, dict.fromkeys(times, 0.1), explored=9, finalists=0)
        assert set(made.finalists) == times.keys() - {self.SLOW}

    @pytest.mark.parametrize(("seconds", "rounds"), [(1e-3, 40), (0.5, 8), (60.0, 3)])
    def test_rounds_fit_the_time(self, seconds, rounds):
        times = {self.ONE: seconds, self.FAST: seconds}
        made = search(times, {self.ONE: seconds, self.FAST: 0.1 * seconds}, race_s=8.0, rounds=(3, 40), seconds=1e3)
        assert made.rounds == rounds


class TestPredictions:
    def test_a_prediction_is_the_simulators(self):
        asked = document(parallel="auto")
        candidate = Candidate(2, 2, 4, "gpipe")
        measured = MeasuredCosts(1e-4, 1e-6, {4: 2.0}, 3e-4, with_messages=True)
        found = predictor(asked).choice(candidate, measured)
        at_size, stage = profile(64 // 8), [4 * 1e-3, 4 * 2e-3]
        assert at_size.graph.layers[0].forward_s == 1e-3
        costs = ScheduleCosts(
            (2 * stage[0],) * 2,
            (2 * stage[1],) * 2,
            transfer_s=(LINK.seconds(800.0) + 3e-4,),
            update_s=(2 * 4000 * 1e-6,) * 2,
            gap_s=1e-4,
            wait_s=(COLLECTIVES["ring"].seconds(4000.0, 2, 1e9, 1e-4),) * 2,
        )
        timeline = simulate(make_schedule("gpipe", 2, 4), costs)
        assert found.microbatch_s * 4 == pytest.approx(timeline.makespan_s)
        assert found.bubble == pytest.approx(bubble_fraction(timeline))

    @pytest.mark.parametrize(
        "dearer",
        [
            MeasuredCosts(gap_s=1e-3),
            MeasuredCosts(update_s_per_byte=1e-6),
            MeasuredCosts(slowdown={2: 1.5}),
            MeasuredCosts(message_s=1e-3, with_messages=True),
        ],
    )
    def test_every_cost_counts(self, dearer):
        candidate, made = Candidate(2, 1, 4, "1f1b"), predictor(document(parallel="auto"))
        assert made.batch_s(candidate, dearer) > made.batch_s(candidate, MeasuredCosts()) + 1e-3

    def test_recomputation_compression_and_sums_count(self):
        candidate, slow = Candidate(2, 2, 4, "1f1b"), LinkSpeed(1e5, 1e-4)
        plain = predictor(document(parallel="auto"), slow).batch_s(candidate, MeasuredCosts())
        again = predictor(document(parallel="auto", recompute=True), slow).batch_s(candidate, MeasuredCosts())
        short = predictor(document(parallel="auto", compress="bfloat16"), slow).batch_s(candidate, MeasuredCosts())
        naive = predictor(document(parallel="auto", sync={"way": "naive"}), slow).batch_s(candidate, MeasuredCosts())
        assert again >= plain + 4 * 4e-3  # the forwards of a stage's four micro-batches
        assert short < plain
        assert naive != plain

    @pytest.mark.parametrize(
        ("link", "expected"),
        [
            (LinkSpeed(1e6, 0.0, 1e-5, 1e-9), ("bfloat16", "none", "bfloat16")),  # the second boundary has 10 bytes
            (LinkSpeed(1e6, 0.0, 1e-5, 6e-7), ("none", "none", "none")),  # conversion takes longer than it saves
            (LinkSpeed(1e12, 0.0, 1e-5, 1e-9), ("none", "none", "none")),  # a fast link
        ],
    )
    def test_boundaries_are_compressed_where_it_saves_time(self, link, expected):
        graph = profile(8, 4).graph
        sizes = (1000.0, 10.0, 4000.0, 1000.0)
        layers = tuple(replace(one, activation_bytes=size) for one, size in zip(graph.layers, sizes, strict=True))
        stages = ((0,), (1,), (2,), (3,))
        found = compressions(LayerGraph(layers, graph.edges), stages, document(compress="auto"), link)
        assert found == expected
        assert compressions(graph, stages, document(compress="float16"), link) == ("float16",) * 3

    def test_compress_auto_is_never_slower_than_both(self):
        candidate, cheap = Candidate(2, 1, 4, "1f1b"), LinkSpeed(1e5, 1e-4, 1e-6, 1e-9)
        seconds = {
            way: predictor(document(parallel="auto", compress=way), cheap).batch_s(candidate, MeasuredCosts())
            for way in ("none", "bfloat16", "auto")
        }
        assert seconds["auto"] == seconds["bfloat16"] < seconds["none"]

    def test_what_recomputes_with_a_split_backward(self):
        made = make_schedule("zb-h1", 2, 4)
        layers = ((0, 1, 2, 3), (4, 5, 6, 7))
        costs = schedule_costs(profile(8), layers, made, document(devices=2, recompute=True), Prices(LINK))
        both = [costs.computing_s(kind, 0) for kind in (ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT)]
        assert both == pytest.approx([8e-3, 4e-3])
        assert sum(both) == pytest.approx(costs.computing_s(ActionKind.BACKWARD, 0))

    def test_profiles_are_interpolated(self):
        sized = SizedProfiles.measured((1, 64, 8), profile)
        for size in (1, 8, 40, 64):
            layer, exact = sized.at(size).graph.layers[3], profile(size).graph.layers[3]
            assert (layer.forward_s, layer.activation_bytes) == pytest.approx((exact.forward_s, exact.activation_bytes))

    def test_memory_excludes(self):
        asked = document(parallel="auto", memory="21 kB")
        usable, rejected = predictor(asked).usable([Candidate(1, 1, 1, "1f1b"), Candidate(2, 1, 8, "1f1b")])
        assert [one.devices for one in usable] == [2]
        assert not rejected
        with_one, why = predictor(asked).usable([Candidate(1, 1, 1, "1f1b")])
        assert not with_one
        assert "needs" in why["1f1b"]


class TestMeasuredCosts:
    def times(self, costs: ScheduleCosts, name: str = "1f1b", offset_s: float = 0.0) -> tuple[object, list[RankTimes]]:
        """What two devices measure whose actions take these costs, on clocks that differ."""
        schedule = make_schedule(name, 2, 4)
        timeline = simulate(schedule, costs)
        own = []
        for device in range(2):
            times = zip(timeline.starts_s[device], timeline.ends_s[device], strict=True)
            own.append([(start + device * offset_s, end + device * offset_s) for start, end in times])
        return schedule, [RankTimes(device, 0, [timeline.makespan_s] * 2, [own[device]] * 2) for device in range(2)]

    @pytest.mark.parametrize("offset_s", [0.0, 100.0])
    @pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
    def test_measured_costs_repeat_the_run(self, name, offset_s):
        split = {"input_s": (2e-3, 3e-3), "weight_s": (3e-3, 1e-3)}
        rest = {"transfer_s": (2e-3,), "update_s": (1e-3, 2e-3), "gap_s": 1e-4, "wait_s": 5e-4}
        true = ScheduleCosts((3e-3, 2e-3), (5e-3, 4e-3), **split, **rest)
        schedule, ranks = self.times(true, name, offset_s)
        found = measured_costs(schedule, ranks, ScheduleCosts((1.0, 1.0), (1.0, 1.0), transfer_s=(1e-4,)))
        assert simulate(schedule, found).makespan_s == pytest.approx(simulate(schedule, true).makespan_s, rel=0.03)
        assert found.forward_s == pytest.approx(true.forward_s)
        assert found.update_s == pytest.approx(true.update_s)
        assert found.gap_s == pytest.approx(true.gap_s)

    def test_each_number_comes_from_the_first_trial_that_shows_it(self):
        one, two = document(), document(devices=2, microbatches=4)
        alone = ScheduleCosts((8e-3,), (16e-3,), update_s=(8e-3,), gap_s=1e-4)
        single, half = make_schedule("1f1b", 1, 1), ScheduleCosts((4e-3,), (8e-3,))
        first = MeasuredCosts().learned(one, single, half, alone, 8000.0)
        assert first == MeasuredCosts(1e-4, pytest.approx(8e-3 / 8000 / 2), {1: 2.0})
        predicted = ScheduleCosts((8e-3,) * 2, (16e-3,) * 2, transfer_s=(1e-3,))
        shown = replace(predicted, forward_s=(12e-3,) * 2, backward_s=(24e-3,) * 2, transfer_s=(4e-3,), gap_s=3e-4)
        schedule = make_schedule("1f1b", 2, 4)
        second = first.learned(two, schedule, predicted, shown, 8000.0)
        assert (second.slowdown, second.gap_s) == ({1: 2.0, 2: pytest.approx(3.0)}, 3e-4)
        assert second.message_s == pytest.approx(3e-3)
        assert second.update_s_per_byte == first.update_s_per_byte
        split = make_schedule("zb-h1", 2, 4)
        whole = replace(predicted, input_s=(8e-3,) * 2, weight_s=(8e-3,) * 2)
        halves = replace(shown, input_s=(30e-3,) * 2, weight_s=(40e-3,) * 2)  # forwards take 1.5 times as long
        assert first.learned(two, split, whole, halves, 8000.0).slowdown[2] == pytest.approx(3.0)
        assert second.learned(two, schedule, predicted, replace(shown, gap_s=9e-4), 8000.0) == second


def test_a_finalist_that_does_not_fit_takes_no_memory_from_those_after_it():
    large, small, other = (Candidate(count, 1, 1, "1f1b") for count in (1, 2, 3))
    needed = {small: 4.0, large: 9.0, other: 5.0}
    assert fitting_together(needed, 10.0) == [small, other]
    assert fitting_together(needed, None) == [small, large, other]


def test_a_run_on_fewer_cores_than_it_has_devices_starts_them_all():
    auto = document(parallel="auto", devices=8)
    assert with_processes(auto, 2).ranks == 8
    assert with_processes(auto, 16).ranks == 16
    assert with_processes(document(devices=2), 16).ranks == 2


@pytest.mark.parametrize("given", [{"devices": 2}, {"replicas": 2}])
def test_fewer_processes_than_devices_and_replicas_are_refused(given):
    with pytest.raises(ValueError, match="processes is 1, and devices x replicas x tensor 2"):
        document(parallel="auto", processes=1, **given)


def test_devices_that_wait_or_have_nothing_to_plan_are_named():
    assert notes_on_devices(document(devices=2, microbatches=4)) == []
    assert "--set microbatches=4" in notes_on_devices(document(devices=2))[0]
    assert "nothing to plan" in notes_on_devices(document(objective="dapple"))[0]


@pytest.mark.parametrize(
    ("settings", "history", "said"),
    [
        ({"epochs": 2}, [{"loss": 1.0}, {"loss": 0.5}], "is after epoch 2, and the document asks for 2 epochs"),
        ({"epochs": 1}, [{"loss": 1.0}, {"loss": 0.5}], "--set epochs=3 goes on; --fresh starts over"),
        (
            {"epochs": 9, "early_stop": EarlyStopSpec(metric="loss", patience=1)},
            [{"loss": 1.0}, {"loss": 2.0}],
            "and stopped after epoch 2: loss has not improved",
        ),
        ({"epochs": 9, "early_stop": EarlyStopSpec(metric="loss", patience=2)}, [{"loss": 1.0}, {"loss": 2.0}], ""),
        ({"epochs": 3}, [{"loss": 1.0}, {"loss": 0.5}], ""),
        ({"epochs": 3}, [], ""),
    ],
)
def test_a_run_with_nothing_left_says_so_before_it_tries_the_model(tmp_path, settings, history, said):
    if history:
        folder = tmp_path / "training" / "checkpoints" / f"epoch-{len(history)}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"history": history}))
    note = note_of_finished(document(**settings), tmp_path)
    assert said in note
    assert bool(note) is bool(said)


def test_reasons_that_are_alike_are_listed_once():
    assert list(_listed({"gpipe": "gpipe: too few", "1f1b": "too few", "naive": "other"})) == [
        "  - gpipe, 1f1b: too few",
        "  - naive: other",
    ]
