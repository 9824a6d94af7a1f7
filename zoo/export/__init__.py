"""Exports policies to ONNX, TorchScript and Stable-Baselines3; imports policies from Stable-Baselines3."""
