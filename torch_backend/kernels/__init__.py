"""The library's kernels as torch calls them, eagerly and while torch.compile is at work."""
