"""Datasets and buffers: from files to batches."""
