"""Policies for elsewhere: ONNX, TorchScript, Stable-Baselines3; and its policies for here."""
