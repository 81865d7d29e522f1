"""The search space: from a YAML file to domains, conditions and resolved configurations."""
