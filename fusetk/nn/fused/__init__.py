"""The recurrence of ``nn/recurrence.py`` on CPU with kernels of its own, and its gradients by hand."""
