"""Export of trained policies to NumPy, ONNX, StableHLO and C, with a model card."""
