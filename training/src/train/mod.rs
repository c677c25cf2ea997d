//! The loop: from a configuration to a trained model and its metrics.
