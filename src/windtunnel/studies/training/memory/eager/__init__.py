"""Memory of eager PyTorch, op by op: what autograd keeps."""
