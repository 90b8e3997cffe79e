"""The only home of TRL, PEFT and the transformers trainer; runs in worker processes."""
