"""One loop for training, DEV and final: token ids in, token ids out, evidence kept."""
