"""Hydra's config tree: `env/` names the environments and their reference scores."""
