"""Optimizers and learning rate rules of one's own: by FILE.py:NAME, as in plain torch, or refused before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn

from jellybean.documents.training import LrSpec, OptimizerSpec
from jellybean.errors import JellyBeanError
from jellybean.training.errors import TrainingError
from jellybean.training.optimization.lr_schedules import check_lr_schedule, make_lr_schedule
from jellybean.training.optimization.optimizers import plan_optimizer
from jellybean.training.stages.updates import GROUP

RULES = """
import torch
from torch.optim.lr_scheduler import LRScheduler

class Lion(torch.optim.Optimizer):
    def __init__(self, weights, lr, beta=0.9):
        super().__init__(weights, dict(lr=lr, beta=beta))
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None: continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_((m * g["beta"] + p.grad * (1 - g["beta"])).sign() * g.get("scale", 1.0), alpha=-g["lr"])
                m.lerp_(p.grad, 0.01)

class Subclass(torch.optim.AdamW):
    pass

class Anything(Lion):
    def __init__(self, weights, *args, **kwargs):
        super().__init__(weights, **kwargs)

class Closure(Lion):
    def step(self, closure):
        return closure()

class Needs(Lion):
    def __init__(self, weights, lr, rho):
        super().__init__(weights, lr)

class Breaks(Lion):
    def step(self, closure=None):
        raise RuntimeError("only on a GPU")

class Counts(Lion):
    def step(self, closure=None):
        super().step()
        self.param_groups[0]["done"] = self.param_groups[0].get("done", 0) + 1

class Remembers(Lion):
    done = 0
    def step(self, closure=None):
        super().step()
        self.done += 1

class Hides(Lion):
    def __init__(self, weights, **options):
        super().__init__(weights, **options)
        self._memory = {"done": 0}
    def step(self, closure=None):
        super().step()
        self._memory["done"] += 1

class Lists(Lion):
    def step(self, closure=None):
        super().step()
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("history", []).append(0)

class Normed(Lion):
    @torch.no_grad()
    def step(self, closure=None):
        every = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = sum(p.grad.square().sum() for p in every).sqrt()
        for p in every:
            p.sub_(p.grad / norm)

class Plain:
    pass

def function(weights, lr):
    return Lion(weights, lr)

class Halved(LRScheduler):
    def __init__(self, optimizer, every):
        self.every = every
        super().__init__(optimizer)
    def get_lr(self):
        return [lr * 0.5 ** (self.last_epoch // self.every) for lr in self.base_lrs]

class Late(Halved):
    def get_lr(self):
        if self.last_epoch == 3:
            raise ZeroDivisionError("no rate is left")
        return super().get_lr()

class Decays(LRScheduler):
    def get_lr(self):
        for group in self.optimizer.param_groups:
            group["beta"] = 0.9 / (1 + self.last_epoch)
        return self.base_lrs
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.py").write_text(RULES, encoding="utf-8")
    return tmp_path


def _net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def _planned(folder: Path, name: str, **more: Any) -> Any:
    return plan_optimizer(OptimizerSpec(name=name, lr=0.1, **more), _net(), folder)


@pytest.mark.parametrize(("name", "more"), [("Lion", {"beta": 0.8}), ("Subclass", {}), ("Anything", {"beta": 0.5})])
def test_it_steps_as_in_plain_torch(folder: Path, name: str, more: dict[str, Any]) -> None:
    plan = _planned(folder, f"rules.py:{name}", **more)
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    nets = [_net(), _net()]
    arguments = {"weight_decay": 0.0} if name == "Subclass" else {}
    optimizers = [
        [plan.made(nets[0].parameters(), lr=0.1, **arguments, **more)],
        [plan.make(dict(list(nets[1].named_parameters())[at : at + 2])) for at in (0, 2)],  # of two stages
    ]
    for net, own in zip(nets, optimizers, strict=True):
        for _ in range(4):
            net.zero_grad()
            (net(rows) - rows).square().mean().backward()
            for optimizer in own:
                optimizer.step()
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))
    assert plan.states_per_weight(_net()) == (2 if name == "Subclass" else 1)


def test_its_groups_may_have_keys_that_are_no_arguments(folder: Path) -> None:
    groups = [{"match": "2.*", "scale": 0.5, "lr": 0.01}]
    plan = _planned(folder, "rules.py:Lion", groups=groups)
    made = plan.make(dict(_net().named_parameters()))
    assert [(group["lr"], group.get("scale")) for group in made.param_groups] == [(0.1, None), (0.01, 0.5)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Plain", "rules.py:Plain is Plain, and must be a class derived from torch's Optimizer"),
        ("function", "rules.py:function is a function, and must be a class"),
        ("Needs", "Needs needs the argument 'rho'"),
        ("Closure", "Closure cannot make a step, which gets no closure"),
        ("Breaks", r"Breaks cannot make a step, which gets no closure at .*rules.py:\d+: only on a GPU"),
        ("Counts", "Counts keeps 'done' in its parameter group or in itself"),
        ("Remembers", "Remembers keeps 'self.done' in its parameter group or in itself"),
        ("Hides", "Hides keeps 'self._memory' in its parameter group or in itself"),
        ("Lists", "Lists has the state 'history', a list, and checkpoints hold tensors and numbers"),
        ("Normed", "Normed steps a parameter in another way where there are others"),
    ],
)
def test_one_that_cannot_train_is_refused(folder: Path, name: str, reason: str) -> None:
    with pytest.raises(TrainingError, match=f"^optimizer: {reason}"):
        _planned(folder, f"rules.py:{name}")


def test_mistakes_in_names(folder: Path) -> None:
    with pytest.raises(TrainingError, match="optimizer: Lion has no argument 'betta'; did you mean 'beta'"):
        _planned(folder, "rules.py:Lion", betta=0.5)
    with pytest.raises(TrainingError, match=r"torch.optim has no lion: .*a class of your own is FILE.py:NAME"):
        _planned(folder, "lion")
    with pytest.raises(JellyBeanError, match="no_such_module_here cannot be imported"):
        _planned(folder, "no_such_module_here:Lion")
    for text in ("rules.py:", ":Lion", "rules.py:Li on"):
        with pytest.raises(ValueError, match="does not name an optimizer"):
            OptimizerSpec(name=text, lr=0.1)


def test_a_rule_of_ones_own_sets_the_rate(folder: Path) -> None:
    plan = _planned(folder, "rules.py:Lion")
    schedule = make_lr_schedule(LrSpec(name="rules.py:Halved", every=2), plan, 3, 4, folder)
    rates = [settings[0]["lr"] for settings in schedule.settings(0, 12)]
    assert rates == [0.1] * 6 + [0.05] * 6
    (settings,) = make_lr_schedule(LrSpec(name="rules.py:Decays", per="update"), plan, 3, 4, folder).settings(5, 1)
    assert settings[0] == {"lr": 0.1, "beta": pytest.approx(0.15)}
    assert GROUP not in settings[0]


def test_a_scheduler_leaves_what_it_does_not_change_to_the_optimizer(folder: Path) -> None:
    plan = _planned(folder, "rules.py:Lion")
    schedule = make_lr_schedule(LrSpec(name="StepLR", step_size=1), plan, 3, 4, folder)
    assert [set(settings[0]) for settings in schedule.settings(0, 9)] == [{"lr"}] * 9


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"name": "LambdaLR", "lr_lambda": "lambda e: 0.9**e"}, "LambdaLR cannot be used"),
        ({"name": "SequentialLR", "milestones": [2]}, "SequentialLR cannot be used"),
        ({"name": "LinearLR", "start_factor": 0.0}, "LinearLR does not take these arguments"),
        ({"name": "OneCycleLR", "max_lr": 0.3, "total_steps": 5}, "OneCycleLR has 5 steps, and the run 12 updates"),
        ({"name": "OneCycleLR", "max_lr": [0.1, 0.2]}, "OneCycleLR does not take these arguments"),
        ({"name": "OneCycleLR", "max_lr": 0.3, "epochs": 2, "steps_per_epoch": 3}, "OneCycleLR has 6 steps"),
        ({"name": "ReduceLROnPlateau", "mode": "lowest"}, "ReduceLROnPlateau does not take these arguments"),
        ({"name": "ReduceLROnPlateau", "min_lr": [0.1, 0.2]}, "ReduceLROnPlateau does not take these arguments"),
        ({"name": "ReduceLROnPlateau", "per": "update"}, "takes the test loss"),
        ({"name": "MultiStepLR", "milestones": 3}, "MultiStepLR does not take these arguments"),
        ({"name": "ExponentialLR", "gamma": 1e200, "per": "update"}, "ExponentialLR gives the rate inf at step 2"),
        ({"name": "CosineAnnealingLR", "T_max": 0}, "CosineAnnealingLR"),
        ({"name": "StepLR", "step_size": 0}, "StepLR failed at step 1"),
        ({"name": "rules.py:Late", "every": 1}, r"Late failed at step 3 at .*rules.py:\d+: .*no rate is left"),
        ({"name": "rules.py:Lion"}, "rules.py:Lion is Lion, and must be a class derived from torch's LRScheduler"),
        ({"name": "rules.py:Halved"}, "Halved needs the argument 'every'"),
    ],
)
def test_a_rule_that_cannot_be_made_or_stepped_is_refused(folder: Path, more: dict[str, Any], reason: str) -> None:
    plan = plan_optimizer(OptimizerSpec(name="sgd", lr=0.1, momentum=0.9), _net())
    with pytest.raises(TrainingError, match=f"^lr_schedule: .*{reason}"):
        check_lr_schedule(LrSpec(**more), plan, 3, 4, folder)
