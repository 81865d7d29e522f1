"""The search: proposals, the loop, confirmation. The only user of Optuna."""
