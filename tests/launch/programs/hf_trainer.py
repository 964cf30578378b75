"""Hugging Face's Trainer, with its checkpoints and its arguments from the command line; it goes on from a checkpoint."""

import shown  # isort: skip
from small import Model, Samples
from transformers import HfArgumentParser, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
set_seed(args.seed)
trainer = Trainer(Model(), args, train_dataset=Samples(), eval_dataset=Samples())
result = trainer.train()
trainer.save_model()
metrics = trainer.evaluate()
again = Trainer(Model(), args, train_dataset=Samples())
again.args.max_steps += 2
again.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir))
losses = {"train": result.training_loss, "evaluation": metrics["eval_loss"], "step": again.state.global_step}
shown.keep(again.model, processes=args.world_size, **losses)
