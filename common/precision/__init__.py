"""Number formats of training: which operation runs in which format, loss scaling, FP8 products."""
