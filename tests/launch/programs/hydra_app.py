"""Hydra: its settings come from the command line, and it changes the working directory where asked."""

import shown  # isort: skip
import logging
import os
from dataclasses import dataclass, field

import hydra
import torch
import torch.distributed as dist
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class OptimizerConfig:
    lr: float = 0.1
    momentum: float = 0.0


@dataclass
class Config:
    steps: int = 2
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


ConfigStore.instance().store(name="config", node=Config)
log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_name="config")
def main(cfg: Config) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), **OmegaConf.to_container(cfg.optimizer))
    torch.manual_seed(dist.get_rank())
    for step in range(cfg.steps):
        loss = (model(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %s: loss %s", step, loss.item())
    folder, overrides = os.path.relpath(os.getcwd(), shown.FOLDER), list(HydraConfig.get().overrides.task)
    shown.keep(model.module, loss=loss.item(), folder=folder, overrides=overrides, settings=OmegaConf.to_container(cfg))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
