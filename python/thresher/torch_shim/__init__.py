"""What stands behind `import thresher.torch_profiler`."""
