"""Any optimizer and scheduler of torch, by name, equals torch's own loop, whichever stage holds a parameter."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import LrSpec, OptimizerSpec
from jellybean.training import TrainingError, make_lr_schedule
from jellybean.training.optimization.optimizers import plan_optimizer
from jellybean.training.stages.updates import GROUP

nn = torch.nn
UPDATES, EPOCHS = 5, 4


def _net() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))
    return net.double()


def _spec(**more: Any) -> OptimizerSpec:
    return OptimizerSpec(**{"name": "sgd", "lr": 0.1, **more})


def _train(net: Any, optimizers: list[Any], before_update: Any) -> list[Any]:
    """Weights after some updates on fixed rows."""
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for update in range(UPDATES * EPOCHS):
        before_update(update)
        net.zero_grad()
        (net(rows) - rows).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return [value.detach() for value in net.parameters()]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("sgd", {"momentum": 0.9, "nesterov": True}),
        ("AdamW", {"betas": [0.8, 0.95], "weight_decay": 0.1}),
        ("rmsprop", {"alpha": 0.9}),
        ("Adafactor", {}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("Adagrad", {}),
        ("Rprop", {}),
        ("ASGD", {}),
    ],
)
def test_an_optimizer_over_two_stages_is_torchs_own(name, more):
    made = {key.lower(): value for key, value in vars(torch.optim).items()}[name.lower()]
    whole = _net()
    optimizer = made(whole.parameters(), **{"lr": 0.1, "weight_decay": 0.0, **more} if name != "Rprop" else {"lr": 0.1})
    expected = _train(whole, [optimizer], lambda update: None)
    net = _net()
    plan = plan_optimizer(_spec(name=name, **more), net)
    named = list(net.named_parameters())
    parts = [plan.make(dict(named[:2])), plan.make(dict(named[2:]))]
    assert all(map(torch.equal, _train(net, parts, lambda update: None), expected))


def test_groups_take_what_matches_and_the_later_wins():
    net = _net()
    groups = [{"match": "*.bias", "weight_decay": 0.0}, {"match": "4.*", "lr": 0.01, "weight_decay": 0.5}]
    plan = plan_optimizer(_spec(weight_decay=0.2, groups=groups), net)
    found = {name: plan.groups[group] for name, group in plan.group_of.items()}
    assert {name: (own["lr"], own["weight_decay"]) for name, own in found.items()} == {
        "0.weight": (0.1, 0.2),
        "0.bias": (0.1, 0.0),
        "2.weight": (0.1, 0.2),
        "2.bias": (0.1, 0.0),
        "4.weight": (0.01, 0.5),
        "4.bias": (0.01, 0.5),
    }
    (own,) = plan.make({"4.bias": net[4].bias}).param_groups
    assert (own["lr"], own["weight_decay"]) == (0.01, 0.5)


def test_a_tied_weight_is_in_one_group_under_all_its_names():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    plan = plan_optimizer(_spec(groups=[{"match": "1.*", "lr": 0.5}]), net)
    assert plan.group_of["0.weight"] == plan.group_of["1.weight"] != plan.group_of["0.bias"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"name": "lbfgs"}, "LBFGS cannot be used: it evaluates the loss several times"),
        ({"name": "SparseAdam"}, "sparse gradients"),
        ({"name": "adamm"}, "torch.optim has no adamm: did you mean 'Adam'"),
        ({"name": "adamww"}, "torch.optim has no adamww: did you mean 'AdamW'"),
        ({"name": "adam", "momentum": 0.9}, "Adam has no argument 'momentum'; it has lr, betas"),
        ({"name": "rmsprop", "alhpa": 0.9}, "RMSprop has no argument 'alhpa'; did you mean 'alpha'"),
        ({"name": "rprop", "weight_decay": 0.1}, "Rprop has no argument 'weight_decay'"),
        ({"name": "adam", "betas": [0.9, 2.0]}, "Adam does not take these arguments: Invalid beta"),
        ({"name": "adam", "betas": 0.9}, "Adam does not take these arguments"),
        ({"differentiable": True}, "SGD has no argument 'differentiable'"),
        ({"groups": [{"match": "head.*"}]}, r"optimizer.groups\[0\]: no parameter is named like 'head.\*'.*0.weight"),
        (
            {"groups": [{"match": "0.*", "momentun": 1.0}]},
            r"optimizer.groups\[0\]: SGD has no argument 'momentun'; did you mean 'momentum'",
        ),
        ({"groups": [{"match": "0.*", "momentum": -1.0}]}, "Invalid momentum"),
        ({"name": "Muon"}, "Muon only supports 2D"),
    ],
)
def test_mistakes(more, told):
    with pytest.raises(TrainingError, match=told):
        plan_optimizer(_spec(**more), _net())


@pytest.mark.parametrize("name", ["sgd", "adam", "Adafactor", "RMSprop", "NAdam", "ASGD", "Adagrad"])
def test_the_size_of_the_state_is_what_a_step_keeps(name):
    net = nn.Sequential(nn.Conv2d(3, 40, 5), nn.Flatten(), nn.Linear(40, 30), nn.Linear(30, 2).requires_grad_(False))
    plan = plan_optimizer(_spec(name=name), net)
    trained = {key: value for key, value in net.named_parameters() if value.requires_grad}
    optimizer = plan.make(trained)
    net(torch.randn(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    kept = sum(
        state.numel()
        for own in optimizer.state.values()
        for state in own.values()
        if isinstance(state, torch.Tensor) and state.dim()
    )
    assert plan.states_per_weight(net) == pytest.approx(kept / sum(value.numel() for value in trained.values()))


SCHEDULERS = [
    ("StepLR", {"step_size": 2, "gamma": 0.5}, False),
    ("CosineAnnealingLR", {"T_max": 4}, False),
    ("CosineAnnealingLR", {"T_max": 20, "per": "update"}, True),
    ("OneCycleLR", {"max_lr": 0.3}, True),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 3}, True),
    ("PolynomialLR", {"total_iters": 4, "power": 2.0}, False),
]


@pytest.mark.parametrize(("name", "more", "by_update"), SCHEDULERS)
@pytest.mark.parametrize("count", [1, UPDATES])
def test_a_scheduler_is_torchs_own(name, more, by_update, count):
    """`count`: updates per iteration; an epoch of several without a flush."""
    whole = _net()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    given = {key: value for key, value in more.items() if key != "per"}
    total = {"total_steps": UPDATES * EPOCHS} if name == "OneCycleLR" else {}
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **given, **total)
    optimizer.step()

    def torchs(update: int) -> None:
        if update and (by_update or update % UPDATES == 0):
            scheduler.step()

    expected = _train(whole, [optimizer], torchs)
    net = _net()
    plan = plan_optimizer(_spec(momentum=0.9), net)
    ours = plan.make(dict(net.named_parameters()))
    schedule = make_lr_schedule(LrSpec(name=name, **more), plan, UPDATES, EPOCHS)
    settings: list[Any] = []

    def own(update: int) -> None:
        if update % count == 0:
            settings[:] = schedule.settings(update, count)
        for group in ours.param_groups:
            group.update(settings[update % count][group[GROUP]])

    assert all(map(torch.equal, _train(net, [ours], own), expected))


def test_a_resumed_run_has_the_same_rates():
    plan = plan_optimizer(_spec(momentum=0.9), _net())
    for name, more, _ in SCHEDULERS:
        whole = make_lr_schedule(LrSpec(name=name, **more), plan, UPDATES, EPOCHS).settings(0, UPDATES * EPOCHS)
        assert make_lr_schedule(LrSpec(name=name, **more), plan, UPDATES, EPOCHS).settings(11, 9) == whole[11:]


def test_a_rate_falls_when_the_test_loss_does_not():
    plan = plan_optimizer(_spec(), _net())
    schedule = make_lr_schedule(LrSpec(name="ReduceLROnPlateau", factor=0.1, patience=1), plan, UPDATES, EPOCHS)
    rates = []
    for epoch, loss in enumerate([1.0, 2.0, 3.0, 4.0]):
        rates.append(schedule.settings(epoch * UPDATES, 1)[0][0]["lr"])
        schedule.end_epoch(loss)
    assert rates == [0.1, 0.1, 0.1, pytest.approx(0.01)]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"name": "Stepper", "step_size": 2}, "lr_scheduler has no Stepper.*StepLR"),
        ({"name": "StepLR"}, "StepLR needs the argument 'step_size'"),
        ({"name": "StepLR", "step_size": 2, "gama": 0.1}, "no argument 'gama'; did you mean 'gamma'"),
        ({"name": "LambdaLR", "lr_lambda": 2}, "LambdaLR cannot be used: it takes Python functions"),
        ({"name": "MultiStepLR", "milestones": 3}, "MultiStepLR does not take these arguments: .*iterable"),
        ({"name": "ReduceLROnPlateau", "per": "update"}, "takes the test loss"),
    ],
)
def test_mistakes_in_a_schedule(more, told):
    with pytest.raises(TrainingError, match=told):
        make_lr_schedule(LrSpec(**more), plan_optimizer(_spec(), _net()), UPDATES, EPOCHS)
