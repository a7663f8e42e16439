"""The training recipe: a small policy, its callbacks, and the entry that Hydra composes."""
