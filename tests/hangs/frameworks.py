"""Programs on frameworks that hang: Hugging Face's Trainer, accelerate, Lightning's Trainer and Fabric. As gallery.py has those
without.

They run where `make bench-smoke` has made .venv/bench, which has the frameworks.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

CASES = {}
FOREVER = 100_000
RANK = int(os.environ["RANK"])


def case(culprit, world=2):
    def keep(function):
        CASES[function.__name__] = function
        return function

    return keep


class Samples(Dataset):
    """Sixteen samples; rank 1's `stuck`-th look at one never ends."""

    def __init__(self, stuck=None):
        self.looks, self.stuck = 0, stuck

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.looks += 1
        if RANK == 1 and self.looks == self.stuck:
            time.sleep(FOREVER)  # *_data_set_is_stuck
        return {"x": torch.ones(4), "labels": torch.ones(1)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels):
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


def trainer(callback=None, samples=None, **more):
    from transformers import Trainer, TrainingArguments

    options = {"use_cpu": True, "ddp_backend": "gloo", "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments("out", per_device_train_batch_size=2, max_steps=8, **(options | more))
    return Trainer(Model(), arguments, train_dataset=samples or Samples(), callbacks=[callback] if callback else None)


def at_step(number, act):
    """A callback for the Trainer."""
    from transformers import TrainerCallback

    class AtStep(TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            if state.global_step == number:
                act(control)

    return AtStep()


@case(1)
def trainer_data_set_is_stuck():
    trainer(samples=Samples(stuck=5)).train()


@case(0)
def trainer_reports_for_ever():
    def report(control):
        if RANK == 0:
            time.sleep(FOREVER)  # trainer_reports_for_ever

    trainer(at_step(3, report)).train()


@case(None)
def trainer_stops_on_one_rank():
    def stop(control):
        control.should_training_stop = RANK == 1

    trainer(at_step(3, stop)).train()


@case(None)
def trainer_barrier_in_a_callback():
    def wait(control):
        if RANK == 0:
            dist.barrier()

    trainer(at_step(3, wait)).train()


@case(1)
def trainer_batches_are_put_together_for_ever():
    def collate(samples):
        if RANK == 1:
            while True:
                time.sleep(0.01)  # trainer_batches_are_put_together_for_ever
        return torch.utils.data.default_collate(samples)

    one = trainer()
    one.data_collator = collate
    one.train()


def accelerated(samples=None):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return accelerator, *accelerator.prepare(model, optimizer, DataLoader(samples or Samples(), batch_size=2))


def steps(backward, model, optimizer, batches, skip=()):
    for number, batch in enumerate(batches):
        if number in skip:
            continue
        optimizer.zero_grad()
        backward(model(**batch)["loss"])
        optimizer.step()


@case(1)
def accelerate_data_set_is_stuck():
    accelerator, *rest = accelerated(Samples(stuck=5))
    steps(accelerator.backward, *rest)


@case(1)
def accelerate_step_left_out():
    accelerator, *rest = accelerated()
    steps(accelerator.backward, *rest, skip=(3,) if RANK == 1 else ())
    if RANK == 1:
        time.sleep(FOREVER)  # here


@case(0)
def accelerate_main_process_first():
    accelerator, *_ = accelerated()
    with accelerator.main_process_first():
        if RANK == 0:
            time.sleep(FOREVER)  # here


@case(1)
def accelerate_gathers_on_the_main_process():
    accelerator, *rest = accelerated()
    steps(accelerator.backward, *rest)
    if accelerator.is_main_process:
        accelerator.gather(torch.ones(1))
    else:
        time.sleep(FOREVER)  # here


@case(1)
def accelerate_waits_for_everyone_in_a_branch():
    accelerator, *rest = accelerated()
    steps(accelerator.backward, *rest)
    if RANK == 0:
        accelerator.wait_for_everyone()
    time.sleep(FOREVER)  # here


def fabric(samples=None):
    from lightning_fabric import Fabric

    one = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
    one.launch()
    model = Model()
    model, optimizer = one.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    return one, model, optimizer, one.setup_dataloaders(DataLoader(samples or Samples(), batch_size=2))


@case(1)
def fabric_data_set_is_stuck():
    one, *rest = fabric(Samples(stuck=5))
    steps(one.backward, *rest)


@case(1)
def fabric_step_left_out():
    one, *rest = fabric()
    steps(one.backward, *rest, skip=(3,) if RANK == 1 else ())
    if RANK == 1:
        time.sleep(FOREVER)  # here


@case(0)
def fabric_rank_zero_first():
    one, *_ = fabric()
    with one.rank_zero_first():
        if RANK == 0:
            time.sleep(FOREVER)  # here


@case(1)
def fabric_gathers_on_one_rank():
    one, *rest = fabric()
    steps(one.backward, *rest)
    if one.global_rank == 0:
        one.all_gather(torch.ones(1))
    else:
        time.sleep(FOREVER)  # here


@case(0)
def fabric_saves_for_ever():
    one, model, *rest = fabric()
    steps(one.backward, model, *rest)
    if RANK == 0:
        os.mkfifo("model.pt")
        open("model.pt", "wb")  # here
    one.barrier()


def lightning(samples=None, **hooks):
    """A Trainer of Lightning's that has trained; `hooks` are the module's own."""
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, number):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    one = Trainer(accelerator="cpu", devices=devices, strategy="ddp", max_epochs=2, **quiet)
    one.fit(type("Own", (Module,), hooks)(), DataLoader(samples or Samples(), batch_size=2))
    return one


@case(1)
def lightning_data_set_is_stuck():
    lightning(Samples(stuck=5))


@case(0)
def lightning_reports_for_ever():
    def report(module, outputs, batch, number):
        if RANK == 0 and number == 3:
            time.sleep(FOREVER)  # lightning_reports_for_ever

    lightning(on_train_batch_end=report)


@case(None)
def lightning_logs_on_one_rank():
    def log(module, outputs, batch, number):
        if RANK == 0 and number == 3:
            module.log("loss", 1.0, sync_dist=True)

    lightning(on_train_batch_end=log)


@case(1)
def lightning_gathers_on_one_rank():
    def end(module):
        if RANK == 0:
            module.all_gather(torch.ones(1))
        else:
            time.sleep(FOREVER)  # lightning_gathers_on_one_rank

    lightning(on_train_end=end)


@case(0)
def lightning_saves_for_ever():
    def save(module, checkpoint):
        if RANK == 0:
            time.sleep(FOREVER)  # lightning_saves_for_ever

    lightning(on_save_checkpoint=save).save_checkpoint("model.ckpt")


if __name__ == "__main__":
    CASES[sys.argv[1]]()
